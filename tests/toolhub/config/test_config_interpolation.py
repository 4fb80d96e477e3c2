"""`${...}` in strings: the environment at load, task variables later, secrets never in sight."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from task_values import BAD_VALUES

from toolhub.config import ServerSpec, parse_config, parse_server
from toolhub.config.interpolate import FromEnvironment, TaskVariable, parse
from toolhub.errors import ConfigError


def server(environ: dict[str, str] | None = None, **keys: Any) -> ServerSpec:
    return parse_server("search", {"command": "x", **keys}, environ=environ or {})


def refusal(environ: dict[str, str] | None = None, **keys: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        server(environ, **keys)
    return caught.value


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ("${A}", {"A": "1"}, "1"),
        ("<${A}|${B}>", {"A": "1", "B": "2"}, "<1|2>"),
        ("${env:A}", {"A": "1"}, "1"),
        ("${A}", {"A": ""}, ""),
        ("${A:-x y}", {}, "x y"),
        ("${A:-x}", {"A": ""}, "x"),
        ("${A-x}", {"A": ""}, ""),
        ("${A-x}", {}, "x"),
        ("${A:-http://h:1/-:-}", {}, "http://h:1/-:-"),
        ("-${A:-}-", {}, "--"),
        ("$${A}", {"A": "1"}, "${A}"),
        ("$$${A}", {"A": "1"}, "$${A}"),
        ("$A $ {A} $5 {}", {"A": "1"}, "$A $ {A} $5 {}"),
        ("${A}", {"A": "${B} $${ ${task.id}"}, "${B} $${ ${task.id}"),
    ],
)
def test_references_are_replaced_as_documented(text: str, environ: dict[str, str], expected: str) -> None:
    assert server(environ, env={"V": text}).env == {"V": expected}


def test_references_work_in_every_kind_of_place() -> None:
    environ = {"PORT": "9", "CMD": "run", "N": "2", "ON": "true", "TOOL": "t"}
    data = {
        "hub": {"port": "${PORT}"},
        "servers": {
            "a": {
                "command": "${CMD}", "args": ["${N}"], "instances": "${N}", "keep_warm": "${ON}",
                "tools": {"deny": ["${TOOL}"]}, "restart": {"max_deaths": "${N}"},
            }
        },
    }  # fmt: skip
    config = parse_config(data, environ=environ)
    spec = config.servers["a"]
    assert config.hub.port == 9
    assert (spec.command, spec.args, spec.instances, spec.keep_warm) == ("run", ["2"], 2, True)
    assert spec.tools.deny == ["t"] and spec.restart.max_deaths == 2


def test_keys_are_not_interpolated() -> None:
    assert server({"A": "1"}, builtin=None, env={"${A}": "x"}).env == {"${A}": "x"}


@pytest.mark.quick
def test_a_missing_variable_is_named_with_its_key_and_the_way_out() -> None:
    error = refusal(env={"API_KEY": "${SERPER_API_KEY}"})
    assert error.key == "servers.search.env.API_KEY"
    assert "environment variable SERPER_API_KEY is not set" in str(error)
    assert "${SERPER_API_KEY:-default}" in str(error) and "${SERPER_API_KEY:-}" in str(error)


def test_a_missing_variable_is_not_also_a_wrong_type() -> None:
    error = refusal(instances="${N}", url=None)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("text", ["${", "${}", "${A B}", "${A:-{}}", "${A:-${B}}", "${1}", "${input:key}"])
def test_a_reference_that_cannot_be_read_shows_the_forms_that_can(text: str) -> None:
    error = refusal({"A": "1", "B": "2"}, args=["ok", text])
    assert error.key == "servers.search.args[1]"
    assert "cannot read the ${ reference; write ${NAME}" in str(error)


@pytest.mark.parametrize("field", ["env", "headers"])
def test_an_optional_unset_variable_leaves_its_entry_out(field: str) -> None:
    values = {"A": "${A:-}", "B": "${B-}", "C": "x${C:-}", "D": None, "E": ""}
    reach = {"command": "x"} if field == "env" else {"url": "http://h"}
    spec = parse_server("s", {**reach, field: values}, environ={})
    assert getattr(spec, field) == {"C": "x", "E": ""}


def test_an_optional_unset_setting_falls_back_to_its_default() -> None:
    config = parse_config({"hub": {"token": "${T:-}", "port": "${P:-}"}}, environ={})
    assert config.hub.token is None and config.hub.port == 8765


def test_an_optional_unset_argument_stays_an_empty_argument() -> None:
    assert server(args=["--q", "${Q:-}"]).args == ["--q", ""]


def test_numbers_and_booleans_become_text_in_env_args_and_headers() -> None:
    assert server(args=[1, True, 1.5], env={"A": False, "B": 0}).args == ["1", "true", "1.5"]
    assert server(env={"A": False, "B": 0}).env == {"A": "false", "B": "0"}
    assert parse_server("s", {"url": "http://h", "headers": {"V": 1}}).headers == {"V": "1"}


@pytest.mark.quick
def test_for_task_fills_in_every_place_and_leaves_the_original_alone() -> None:
    spec = parse_server(
        "s",
        {
            "command": "x", "args": ["--id=${task.id}"], "cwd": "/w/${task.id}",
            "env": {"RUN": "${task.run}/${task.seed}", "PLAIN": "p"},
        },
        environ={},
    )  # fmt: skip
    filled = spec.for_task({"id": "7", "run": "r", "seed": "s"})
    assert (filled.args, filled.cwd, filled.env) == (["--id=7"], "/w/7", {"RUN": "r/s", "PLAIN": "p"})
    assert (spec.args, spec.cwd) == (["--id=${task.id}"], "/w/${task.id}")
    assert spec.uses_task_variables and not filled.uses_task_variables
    assert spec.fingerprint() != filled.fingerprint()


def test_for_task_fills_in_addresses_and_headers() -> None:
    data = {"url": "http://h/${task.id}", "headers": {"X-Task": "${task.id}"}}
    filled = parse_server("s", data, environ={}).for_task({"id": "7"})
    assert (filled.url, filled.headers) == ("http://h/7", {"X-Task": "7"})


def test_for_task_returns_itself_when_there_is_nothing_to_replace() -> None:
    spec = server(env={"A": "$${task.id}"})
    assert spec.for_task({"id": "7"}) is spec
    assert spec.env == {"A": "${task.id}"}


def test_an_unknown_task_variable_is_named_beside_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        server(env={"A": "${task.seeed}"}).for_task({"id": "7", "seed": "s"})
    assert caught.value.key == "servers.search.env.A"
    assert "'task.seeed'; known ones: task.id, task.seed" in str(caught.value)


def test_what_the_environment_brings_is_never_read_as_a_reference() -> None:
    spec = server({"P": "5$", "Q": "${task.no}"}, env={"A": "${P}${task.id}${Q}$${task.x}"})
    assert spec.for_task({"id": "7"}).env == {"A": "5$7${task.no}${task.x}"}


GOOD_VALUES = ["a", "7", "_x", "task-4711", "gaia.2023:level-1_x..y", "a" * 128]


@pytest.mark.parametrize("name", ["id", "run", "label"])
@pytest.mark.parametrize("field", ["args", "cwd", "env", "url", "headers"])
def test_a_task_value_that_could_leave_its_place_is_refused_wherever_it_stands(name: str, field: str) -> None:
    text = f"x/${{task.{name}}}/y"
    value: Any = {"args": [text], "cwd": text, "env": {"A": text}, "url": f"http://h/{text}", "headers": {"A": text}}[
        field
    ]
    reach = {"url": "http://h"} if field in ("url", "headers") else {"command": "x"}
    spec = parse_server("s", reach | {field: value}, environ={})
    for bad in BAD_VALUES:
        with pytest.raises(ConfigError, match=r"letters \(a to z\), digits and \. _ : -") as caught:
            spec.for_task({name: bad})
        assert f"'task.{name}'" in str(caught.value) and (len(bad) < 3 or bad not in str(caught.value))
    for good in GOOD_VALUES:
        assert f"x/{good}/y" in str(getattr(spec.for_task({name: good}), field))


def test_a_label_that_no_template_uses_may_be_anything() -> None:
    spec = server(env={"A": "${task.id}"})
    assert spec.for_task({"id": "7", "note": "two words / ..", "run": ""}).env == {"A": "7"}


def test_a_spec_built_in_code_knows_its_task_variables() -> None:
    spec = ServerSpec(name="s", transport="stdio", command="x", env={"A": "<${task.id}>"})
    assert spec.for_task({"id": "7"}).env == {"A": "<7>"}


def test_a_changed_copy_is_not_overwritten_by_the_old_template() -> None:
    spec = server(env={"A": "${task.id}", "B": "${task.id}"})
    changed = spec.model_copy(update={"env": {"A": "mine"}})
    assert changed.for_task({"id": "7"}).env == {"A": "mine"}


def test_a_server_shared_by_all_tasks_cannot_use_task_variables() -> None:
    error = refusal(share="hub", env={"A": "${task.id}"})
    assert error.key == "servers.search.share" and "${task.*}" in str(error)


@pytest.mark.parametrize("keys", [{"command": "${task.id}"}, {"description": "${task.id}"}])
def test_task_variables_elsewhere_are_refused(keys: dict[str, Any]) -> None:
    error = refusal(**keys)
    assert error.key == f"servers.search.{next(iter(keys))}" and "only in args, cwd, env" in str(error)


def test_task_variables_outside_of_servers_are_refused() -> None:
    with pytest.raises(ConfigError, match="only inside a server"):
        parse_config({"hub": {"host": "${task.id}"}}, environ={})


@given(st.text())
def test_escaping_makes_any_text_literal(text: str) -> None:
    escaped = text.replace("${", "$${")
    assert "".join(map(str, parse(escaped, {}))) == text


allowed = st.from_regex("[A-Za-z0-9_:][A-Za-z0-9._:-]{0,127}", fullmatch=True)
pieces = st.one_of(
    st.text(alphabet="ab $}", max_size=4).map(lambda text: text.rstrip("$")),
    st.text().map(FromEnvironment),
    st.sampled_from(["id", "run", "a.b-c"]).map(TaskVariable),
)


@given(st.lists(pieces), st.fixed_dictionaries({"id": allowed, "run": allowed, "a.b-c": allowed}))
def test_any_mix_of_references_arrives_as_the_sum_of_its_parts(
    parts: list[str | FromEnvironment | TaskVariable], values: dict[str, str]
) -> None:
    environ = {f"V{i}": p.text for i, p in enumerate(parts) if isinstance(p, FromEnvironment)}
    written = "".join(f"${{V{i}}}" if isinstance(p, FromEnvironment) else str(p) for i, p in enumerate(parts))
    expected = "".join(values[p.name] if isinstance(p, TaskVariable) else str(p) for p in parts)
    spec = server(environ, args=[written])
    assert spec.for_task(values).args == [expected]
