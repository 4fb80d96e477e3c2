"""Server entries: transports, rules between keys, defaults, fingerprints."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from toolhub.config import ServerSpec, parse_config, parse_server
from toolhub.errors import ConfigError


def server(**keys: Any) -> ServerSpec:
    return parse_server("s", keys, environ={})


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        server(**keys)
    return str(caught.value)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("keys", "transport"),
    [
        ({"command": "x"}, "stdio"),
        ({"command": "x", "type": "stdio"}, "stdio"),
        ({"url": "http://h/mcp"}, "http"),
        ({"url": "https://h/sse"}, "sse"),
        ({"url": "https://h/a/sse/?k=1"}, "sse"),
        ({"url": "http://h/sse", "type": "http"}, "http"),
        ({"url": "http://h/mcp", "type": "sse"}, "sse"),
        ({"url": "http://h", "transport": "sse"}, "sse"),
        ({"url": "http://h", "type": "streamable-http"}, "http"),
        ({"url": "http://h", "transport": "streamableHttp"}, "http"),
        ({"url": "http://h", "transport": "streamable_http"}, "http"),
        ({"url": "http://h", "transport": "http", "type": "streamable-http"}, "http"),
        ({"url": "http://${task.host}/"}, "http"),
        ({"url": "${task.url}"}, "http"),
        ({"builtin": "pkg.mod:factory"}, "builtin"),
    ],
)
def test_the_transport_follows_from_the_keys(keys: dict[str, Any], transport: str) -> None:
    assert server(**keys).transport == transport


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({}, "s: needs exactly one of 'command' (a program), 'url' (a remote server) or 'builtin'"),
        ({"command": "x", "url": "http://h"}, "s: has 'command' and 'url'; exactly one of"),
        ({"command": "x", "builtin": "m:f"}, "s: has 'command' and 'builtin'; exactly one of"),
        ({"command": "x", "type": "http"}, "s.type: 'http' needs 'url', but the server has 'command'"),
        ({"url": "http://h", "transport": "stdio"}, "s.transport: 'stdio' needs 'command', but"),
        ({"url": "http://h", "transport": "http", "type": "sse"}, "s.type: contradicts 'transport'"),
        ({"command": "x", "type": "studio"}, "s.type: expected 'stdio', 'http', 'sse' or 'builtin', found"),
        ({"command": "x", "type": "studio"}, "did you mean 'stdio'?"),
        ({"command": ""}, "s.command: must not be empty"),
        ({"url": "ftp://h"}, "s.url: expected a URL beginning with http:// or https://"),
        ({"url": "http:///x"}, "s.url: expected a URL"),
        ({"builtin": "pkg.mod"}, "s.builtin: expected the name of an installed server"),
        ({"command": "x", "options": {"a": 1}}, "s.options: can only be used with 'builtin'"),
        ({"command": "x", "headers": {"a": "b"}}, "s.headers: can only be used with 'url'"),
        ({"url": "http://h", "args": ["a"]}, "s.args: can only be used with 'command'"),
        ({"command": "x", "instances": 2, "share": "call"}, "s.instances: must be 1 with 'share: call'"),
        ({"command": "x", "instances": 0}, "s.instances: must be at least 1"),
        ({"command": "x", "instances": True}, "s.instances: expected a whole number, found a boolean"),
        ({"command": "x", "instances": 1.5}, "s.instances: expected a whole number, found a number"),
        ({"command": "x", "call_timeout_s": 0}, "s.call_timeout_s: must be greater than 0"),
        ({"command": "x", "idle_s": -1}, "s.idle_s: must be greater than 0"),
        ({"command": "x", "idle_s": float("inf")}, "s.idle_s: expected a finite number"),
        ({"command": "x", "restart": {"backoff_s": -1}}, "s.restart.backoff_s: must be at least 0"),
        ({"command": "x", "restart": 3}, "s.restart: expected a mapping, found a number"),
        ({"command": "x", "keep_warm": "maybe"}, "s.keep_warm: expected true or false, found a string"),
        ({"command": "x", "args": "-v"}, "s.args: expected a list, found a string"),
        ({"command": "x", "args": ["a", None]}, "s.args[1]: expected a string, found nothing (null)"),
        ({"command": "x", "env": ["A=1"]}, "s.env: expected a mapping, found a list"),
        ({"command": "x", "env": {"A=B": "1"}}, "s.env.A=B: the name of an environment variable"),
        ({"command": "x", "inherit_env": [""]}, "s.inherit_env[0]: the name of an environment variable"),
        ({"command": "x", "spawn": "vfork"}, "s.spawn: expected 'exec' or 'fork'"),
        ({"url": "http://h", "spawn": "fork"}, "s.spawn: can only be used with 'command'"),
        ({"command": "x", "preload": ["json"]}, "s.preload: can only be used with 'spawn: fork'"),
        ({"command": "x", "coalesce": "hub"}, "s.coalesce: 'hub' shares answers between tasks"),
        ({"command": "x", "cache": {"scope": "hub"}}, "s.cache.scope: 'hub' shares answers between"),
        ({"command": "x", "name": "y"}, "s.name: unknown key 'name'"),
        ({"command": "x", "enabled": False}, "s.enabled: unknown key 'enabled'"),
        ({"command": "x", "tools": {"policy": {"t": {"readonly": True}}}}, "did you mean 'read_only'?"),
        ({"command": "x", "tools": {"policy": {"tools": {"idempotent_": 1}}}}, "did you mean 'idempotent'?"),
    ],
)
def test_a_wrong_entry_is_refused_with_what_was_expected(keys: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(**keys)


@pytest.mark.quick
def test_an_unknown_key_is_refused_with_the_nearest_valid_one_or_all_of_them() -> None:
    message = refusal(command="x", calltimeout_s=3)
    assert "servers.s.calltimeout_s: unknown key 'calltimeout_s'; did you mean 'call_timeout_s'?" in message
    message = refusal(command="x", zzz=3)
    assert (
        "unknown key 'zzz'; known keys: adaptive, args, builtin, cache, call_timeout_s, coalesce, command," in message
    )


def test_rules_between_keys_are_reported_beside_wrong_types() -> None:
    lines = refusal(command="x", url="http://h", instances="many", options={"a": 1}).splitlines()
    assert len(lines) == 3
    assert {line.split(": ")[1] for line in lines} == {
        "servers.s",
        "servers.s.instances",
        "servers.s.options",
    }


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "x" * 65])
def test_a_name_that_cannot_stand_in_an_address_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a server's name is 1 to 64 characters"):
        parse_server(name, {"command": "x"}, environ={})


def test_the_name_is_the_key() -> None:
    config = parse_config({"servers": {"a-1": {"command": "x"}}}, environ={})
    assert config.servers["a-1"].name == "a-1"


def test_defaults_are_the_documented_ones() -> None:
    spec = server(command="x")
    assert (spec.share, spec.instances, spec.spawn, spec.protocol) == ("task", 1, "exec", "legacy")
    assert (spec.start_timeout_s, spec.call_timeout_s, spec.stop_timeout_s, spec.idle_s) == (30, 300, 2, 600)
    assert (spec.concurrency, spec.keep_warm, spec.disabled, spec.tools.allow) == (64, False, False, None)
    assert spec.restart.model_dump() == {
        "max_deaths": 3, "window_s": 60, "backoff_s": 0.1, "max_backoff_s": 5, "cooldown_s": 60
    }  # fmt: skip


def test_null_means_never_where_a_time_is_optional() -> None:
    spec = server(command="x", idle_s=None, restart={"cooldown_s": None})
    assert spec.idle_s is None and spec.restart.cooldown_s is None


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, True),
        ({"share": "hub"}, False),
        ({"share": "call"}, False),
        ({"stateful": False}, False),
        ({"share": "hub", "stateful": True}, True),
    ],
)
def test_a_server_of_one_task_is_taken_to_keep_state(keys: dict[str, Any], expected: bool) -> None:
    assert server(command="x", **keys).is_stateful is expected


def test_the_fingerprint_covers_everything_a_process_is_made_from() -> None:
    base = {"command": "x", "args": ["a"], "env": {"A": "1", "B": "2"}}
    variants: list[dict[str, Any]] = [
        {"command": "y"}, {"args": ["b"]}, {"env": {"A": "1"}}, {"cwd": "/"}, {"inherit_env": ["C"]}
    ]  # fmt: skip
    prints = {server(**{**base, **variant}).fingerprint() for variant in [{}, *variants]}
    assert len(prints) == len(variants) + 1
    assert all(len(value) == 16 for value in prints)


def test_the_fingerprint_ignores_order_and_policy() -> None:
    one = server(command="x", env={"A": "1", "B": "2"})
    other = server(command="x", env={"B": "2", "A": "1"}, call_timeout_s=9, tools={"deny": ["t"]})
    assert one.fingerprint() == other.fingerprint()


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    assert server(command="x").fingerprint() == "79d6d33e64dc328e"


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        server(command="x").command = "y"


def test_a_spec_built_in_code_obeys_the_same_rules() -> None:
    with pytest.raises(ValidationError, match="'sse' needs 'url'"):
        ServerSpec(name="s", command="x", transport="sse")
    assert ServerSpec.model_validate({"name": "s", "url": "http://h/sse"}).transport == "sse"


def test_an_inline_server_comes_back_even_when_disabled() -> None:
    assert server(command="x", disabled=True).disabled


def test_an_inline_server_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"servers\.s: expected a mapping, found a list"):
        parse_server("s", [])  # type: ignore[arg-type]  # what a careless client sends


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "task"),
        ({"share": "hub"}, "hub"),
        ({"stateful": False}, "hub"),
        ({"share": "hub", "stateful": True}, "task"),
        ({"share": "hub", "coalesce": "off"}, "off"),
    ],
)
def test_equal_calls_are_shared_between_tasks_only_where_no_state_could_differ(keys, expected) -> None:
    (spec,) = parse_config({"servers": {"s": {"command": "x", **keys}}}).servers.values()
    assert spec.sharing == expected


def test_the_tasks_values_do_not_change_the_fingerprint_of_the_template() -> None:
    entry = {"command": "x", "env": {"TASK": "${task.id}", "PLAIN": "y"}}
    (spec,) = parse_config({"servers": {"s": entry}}, environ={}).servers.values()
    one, two = (spec.for_task({"id": name}) for name in ("one", "two"))
    assert one.fingerprint() != two.fingerprint()
    assert one.template_fingerprint == two.template_fingerprint == spec.fingerprint()
    assert one.task_variables == {"TASK"} and spec.task_variables == frozenset()
