"""The root, the hub's own settings and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolhub.config import Config, HubSettings, parse_config
from toolhub.errors import ConfigError


def parse(environ: dict[str, str] | None = None, **sections: Any) -> Config:
    return parse_config(sections, environ=environ or {})


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(**sections)
    return str(caught.value)


@pytest.mark.quick
def test_an_unknown_section_is_refused_with_the_nearest_valid_one() -> None:
    message = refusal(sevrers={})
    assert message.startswith("<inline>: sevrers: unknown key 'sevrers'; did you mean 'servers'?")


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"hub": {"port": 70000}}, "hub.port: must be at most 65535"),
        ({"hub": {"port": "http"}}, "hub.port: expected a whole number, found a string"),
        ({"hub": {"log_level": "INFO"}}, "did you mean 'info'?"),
        ({"hub": {"drain_s": True}}, "hub.drain_s: expected a number, found a boolean"),
        ({"hub": {"max_starts": 0}}, "hub.max_starts: must be at least 1"),
        ({"hub": {"host": ""}}, "hub.host: must not be empty"),
        ({"hub": {"token": 12345}}, "hub.token: expected a string, found a number"),
        ({"hub": {"uds": 3}}, "hub.uds: expected a path, found a number"),
        ({"hub": ["port"]}, "hub: expected a mapping, found a list"),
        ({"limits": {"concurency": 1}}, "did you mean 'concurrency'?"),
        ({"limits": {"queue": -1}}, "limits.queue: must be at least 0"),
        ({"limits": {"task_lease_s": 0}}, "limits.task_lease_s: must be greater than 0"),
        ({"sandbox": {"backends": "local"}}, "sandbox.backends: unknown key 'backends'; did you mean 'backend'?"),
        ({"servers": []}, "servers: expected a mapping, found a list"),
        ({"servers": {"a": "python"}}, "servers.a: expected a mapping, found a string"),
        ({"inputs": []}, "unknown key 'inputs'"),
        ({"hub": {1: 2}}, "hub: keys must be strings, found a number"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_was_expected(sections: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(**sections)


def test_limits_have_the_documented_defaults() -> None:
    assert parse().limits.model_dump() == {
        "task_lease_s": 900, "concurrency": 256, "queue": 1024, "max_tasks": 1000, "task_concurrency": 64,
        "run_weights": {}, "max_result_bytes": 67_108_864, "processes": None, "memory_bytes": None, "open_files": None,
    }  # fmt: skip


def test_the_hub_listens_on_the_loopback_only_unless_told_otherwise() -> None:
    hub = parse().hub
    assert (hub.host, hub.port, hub.uds, hub.token) == ("127.0.0.1", 8765, None, None)
    assert not hub.allow_inline_servers


def test_starts_are_limited_by_the_cores_unless_told_otherwise() -> None:
    assert parse(hub={"max_starts": 3}).hub.start_limit == 3
    assert parse().hub.start_limit >= 2 and parse().hub.start_limit % 2 == 0


@pytest.mark.parametrize(
    ("environ", "state_dir", "expected"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, None, "/x/toolhub"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, None, "/h/.local/state/toolhub"),
        ({"HOME": "/h"}, None, "/h/.local/state/toolhub"),
        ({"XDG_STATE_HOME": "/x"}, "/s", "/s"),
        ({"S": "/from/env"}, "${S}", "/from/env"),
    ],
)
def test_state_goes_where_the_config_or_else_xdg_says(
    environ: dict[str, str], state_dir: str | None, expected: str
) -> None:
    assert parse(environ, hub={"state_dir": state_dir}).hub.state_path == Path(expected)


def test_a_tilde_in_a_path_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    hub = parse(hub={"state_dir": "~/s", "uds": "~/hub.sock"}).hub
    assert (hub.state_path, hub.uds) == (Path("/h/s"), Path("/h/hub.sock"))


def test_settings_built_in_code_look_at_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert HubSettings().state_path == Path("/x/toolhub")


def test_without_an_environ_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_TEST_HOST", "::1")
    assert parse_config({"hub": {"host": "${TOOLHUB_TEST_HOST}"}}).hub.host == "::1"


def test_a_config_cannot_be_changed() -> None:
    config = parse()
    with pytest.raises(ValidationError, match="frozen"):
        config.hub.port = 1


@pytest.mark.quick
@pytest.mark.parametrize("disabled", [True, "true", "${OFF:-yes}"])
def test_a_disabled_server_is_left_out_and_needs_no_variables(disabled: bool | str) -> None:
    servers = {"a": {"command": "x"}, "b": {"command": "${UNSET}", "disabled": disabled}}
    assert list(parse(servers=servers).servers) == ["a"]


def test_a_missing_variable_that_decides_about_a_server_is_reported() -> None:
    assert "servers.a.disabled: environment variable OFF" in refusal(
        servers={"a": {"command": "x", "disabled": "${OFF}"}}
    )


def test_a_name_in_both_maps_is_refused() -> None:
    message = refusal(servers={"a": {"command": "x"}}, mcpServers={"a": {"command": "y"}})
    assert "mcpServers.a: is also in 'servers'" in message


def test_both_maps_are_merged_in_order() -> None:
    config = parse(servers={"a": {"command": "x"}}, mcpServers={"b": {"url": "http://h"}})
    assert list(config.servers) == ["a", "b"]


def test_errors_of_an_inline_config_carry_its_name_and_no_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"hub": {"port": -1}}, path="<request>", environ={})
    assert str(caught.value) == "<request>: hub.port: must be at least 0"
    assert caught.value.line is None
