"""Secrets: what counts as one, and that none is ever shown."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolhub.config import ServerSpec, load_config, parse_config, parse_server, redact
from toolhub.config.redact import redacted_arguments
from toolhub.errors import ConfigError

SECRET = "sk-0123456789"


def server(**keys: Any) -> ServerSpec:
    reach = {} if {"url", "builtin"} & keys.keys() else {"command": "x"}
    return parse_server("s", {**reach, **keys}, environ={"K": SECRET, "SHORT": "12345"})


@pytest.mark.quick
@pytest.mark.parametrize(
    "keys",
    [
        {"env": {"A": "${K}"}},
        {"args": ["--key=${K}"]},
        {"url": "http://h/?k=${K}"},
        {"url": "http://h", "headers": {"A": "x ${K}"}},
        {"builtin": "m:f", "options": {"nested": [{"a": "${K}"}]}},
        {"env": {"MY_API_KEY": SECRET}},
        {"env": {"db_password": SECRET}},
        {"url": "http://h", "headers": {"Authorization": f"Bearer {SECRET}"}},
        {"builtin": "m:f", "options": {"credentials": {"user": SECRET}}},
        {"url": f"http://h/mcp?page=1&api_key={SECRET}"},
        {"url": f"http://me:{SECRET}@h/mcp"},
    ],
)
def test_what_comes_from_the_environment_or_is_named_like_a_secret_is_one(keys: dict[str, Any]) -> None:
    spec = server(**keys)
    assert SECRET in spec.secrets
    assert SECRET not in repr(spec) and SECRET not in str(spec)


def test_ordinary_values_are_no_secrets() -> None:
    spec = server(env={"LANG": "C.UTF-8", "TOKEN": "short", "A": "${SHORT}"}, cwd="/${K}", args=["--verbose"])
    assert spec.secrets == frozenset()


def test_secrets_survive_for_task_and_include_what_the_task_brought() -> None:
    spec = server(env={"A": "${K}", "TASK_TOKEN": "${task.token}"}).for_task({"token": "task-token-1"})
    assert {SECRET, "task-token-1"} <= spec.secrets


@pytest.mark.quick
@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--api-key", SECRET, "x"], ["--api-key", "***", "x"]),
        ([f"--api-key={SECRET}"], ["--api-key=***"]),
        (["--token", SECRET], ["--token", "***"]),
        (["--client_secret", SECRET], ["--client_secret", "***"]),
        (["--PASSWORD", SECRET], ["--PASSWORD", "***"]),
        (["-key", SECRET], ["-key", "***"]),
        (["run", "-e", f"OPENAI_API_KEY={SECRET}", "image"], ["run", "-e", "OPENAI_API_KEY=***", "image"]),
        (["--header", f"Authorization: Bearer {SECRET}"], ["--header", "Authorization: ***"]),
        (["--token", f"--{SECRET}"], ["--token", "***"]),
        (["--password", "abc", f"--key={SECRET}"], ["--password", "***", "--key=***"]),
    ],
    ids=str,
)
def test_what_an_argument_calls_a_secret_is_one_and_is_never_shown(args: list[str], shown: list[str]) -> None:
    spec = server(args=args)
    assert redacted_arguments(args) == shown
    assert spec.command_line == shlex.join(["x", *shown])
    assert redact(f"--{SECRET}", spec.secrets) in ("--***", "***")
    assert SECRET not in repr(spec)


@pytest.mark.quick
@pytest.mark.parametrize("args", [["--max-tokens", "500000"], ["--keys-from", "/a/path"], ["monkey", "/a/path"], []])
def test_arguments_that_name_no_secret_are_shown(args: list[str]) -> None:
    assert redacted_arguments(args) == args and server(args=args).secrets == frozenset()


def test_redact_replaces_every_secret_and_the_longest_first() -> None:
    assert redact("abcdef abcdefgh x", ["abcdef", "abcdefgh"]) == "*** *** x"
    assert redact("a.c abc", ["a.c"]) == "*** abc"
    assert redact("text", []) == "text" and redact("text", [""]) == "text"


def test_the_hub_token_is_not_shown() -> None:
    config = parse_config({"hub": {"token": "${K}"}}, environ={"K": SECRET})
    assert config.hub.token is not None and config.hub.token.get_secret_value() == SECRET
    assert SECRET not in repr(config) and SECRET not in str(config.hub)


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hub\.token: must not be empty"):
        parse_config({"hub": {"token": "${K}"}}, environ={"K": ""})


def test_pydantic_does_not_show_what_it_refuses() -> None:
    with pytest.raises(ValidationError) as caught:
        ServerSpec.model_validate({"name": "s", "command": "x", "instances": SECRET, "env": SECRET})
    assert SECRET not in str(caught.value)


PLACES = [
    ("hub", "token"), ("hub", "host"), ("hub", "port"), ("hub", "log_level"), ("hub", "uds"),
    ("limits", "queue"), ("limits", "max_result_bytes"), ("servers", "a"), ("servers", "a", "command"),
    ("servers", "a", "args"), ("servers", "a", "env"), ("servers", "a", "env", "X"), ("servers", "a", "url"),
    ("servers", "a", "headers", "X"), ("servers", "a", "builtin"), ("servers", "a", "options"),
    ("servers", "a", "options", "o"), ("servers", "a", "share"), ("servers", "a", "instances"),
    ("servers", "a", "stateful"), ("servers", "a", "type"), ("servers", "a", "idle_s"),
    ("servers", "a", "inherit_env"), ("servers", "a", "restart"), ("servers", "a", "restart", "window_s"),
    ("servers", "a", "tools", "policy", "t", "read_only"), ("mcpServers", "b", "timeout"),
    ("mcpServers", "b", "enabled"), ("mcpServers", "b", "disabledTools"), ("mcpServers", "b", "autoApprove"),
]  # fmt: skip


def tree(places: list[tuple[str, ...]], value: str) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for *above, last in places:
        node = root
        for part in above:
            child = node.setdefault(part, {})
            node = child if isinstance(child, dict) else {}
        node.setdefault(last, value)
    return root


@given(
    st.lists(st.sampled_from(PLACES), min_size=1, max_size=8),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    st.sampled_from(["${S}", "x${S}", "${S} ${UNSET}", "${task.id}${S}", "${S} ${"]),
)
def test_no_value_of_the_environment_appears_in_an_error(
    places: list[tuple[str, ...]], text: str, written: str
) -> None:
    secret = "s3cr3t" + text
    try:
        parse_config(tree(places, written), environ={"S": secret})
    except ConfigError as error:
        assert "s3cr3t" not in str(error) + repr(error)
        assert error.__cause__ is None


@given(st.text(min_size=6).filter(str.strip), st.sampled_from(["${S}", "--k=${S}", "${task.id}${S}"]))
def test_no_value_of_the_environment_appears_in_a_repr(secret: str, written: str) -> None:
    secret = f"s3cr3t{secret}"
    data = {"command": "x", "args": [written], "env": {"A": written}}
    spec = parse_server("s", data, environ={"S": secret})
    assert "s3cr3t" not in repr(spec) + str(spec) + repr(spec.for_task({"id": "1"}))


def test_a_wrong_value_in_a_file_is_described_and_not_repeated(tmp_path: Any) -> None:
    path = tmp_path / "hub.yaml"
    path.write_text(f"hub: {{token: [{SECRET}]}}\nservers: {{a: {{command: x, env: {{K: [{SECRET}]}}}}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert SECRET not in str(caught.value)
    assert "hub.token: expected a string, found a list" in str(caught.value)
    assert f"{path}:2: servers.a.env.K: expected a string, found a list" in str(caught.value)


EVERY_SECRET = {
    "hub": {"token": "hub-token-1"},
    "servers": {
        "stdio": {"command": "x", "env": {"MY_API_KEY": "env-key-1"}, "args": ["--root", "${FOLDER}"]},
        "http": {"url": "http://h", "headers": {"Authorization": "Bearer header-token-1"}},
        "hosted": {"builtin": "m:f", "options": {"serper": {"api_key": "option-key-1"}}},
    },
    "sandbox": {"profiles": {"own": {"env": {"DB_PASSWORD": "profile-password-1"}}}, "e2b": {"api_key": "e2b-key-1"}},
    "llm": {
        "endpoints": ["http://l"],
        "api_key": "llm-key-1",
        "headers": {"X-Auth": "llm-header-1", "X-Title": "research"},
    },
}


def test_a_config_knows_the_secrets_of_all_its_sections() -> None:
    secrets = parse_config(EVERY_SECRET, environ={"FOLDER": "/from/environment"}).secrets
    named = {"hub-token-1", "env-key-1", "header-token-1", "option-key-1", "profile-password-1", "e2b-key-1"}
    assert named | {"llm-key-1", "llm-header-1", "/from/environment"} <= secrets
    assert "research" not in secrets and "http://h" not in secrets


def test_a_config_without_secrets_has_none() -> None:
    assert (
        parse_config({"servers": {"s": {"command": "x", "env": {"LANG": "C.UTF-8"}}}}, environ={}).secrets
        == frozenset()
    )
