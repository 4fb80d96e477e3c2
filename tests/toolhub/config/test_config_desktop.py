"""Files as desktop clients and editors write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolhub.config import Config, ServerSpec, load_config, parse_config
from toolhub.errors import ConfigError


def load(tmp_path: Path, data: dict[str, Any], name: str = "config.json") -> Config:
    path = tmp_path / name
    path.write_text(json.dumps(data, indent="\t"))
    return load_config(path, environ={})


def entry(**keys: Any) -> ServerSpec:
    config = parse_config({"mcpServers": {"s": {"command": "x", **keys}}}, environ={})
    return config.servers["s"]


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        entry(**keys)
    return str(caught.value)


@pytest.mark.quick
def test_a_desktop_file_is_read_as_it_is(tmp_path: Path) -> None:
    data = {
        "globalShortcut": "Ctrl+Space",
        "preferences": {"menuBarEnabled": False, "x": "${NOT_OURS}"},
        "mcpServers": {
            "files": {"command": "npx", "args": ["-y", "server-filesystem", "/data"], "env": {"A": "1"}},
            "remote": {
                "type": "streamable-http",
                "url": "https://h/mcp",
                "headers": {"Authorization": "B x"},
            },
        },
    }
    servers = load(tmp_path, data).servers
    assert servers["files"].args == ["-y", "server-filesystem", "/data"]
    assert (servers["remote"].transport, servers["remote"].url) == ("http", "https://h/mcp")


def test_other_keys_are_refused_once_the_file_has_a_section_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'preferences'"):
        load(tmp_path, {"mcpServers": {}, "hub": {}, "preferences": {}})


def test_a_misspelled_mcp_servers_is_not_mistaken_for_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'mcpServers'"):
        load(tmp_path, {"mcpServer": {}})


def test_an_editors_file_with_servers_and_inputs_is_read(tmp_path: Path) -> None:
    data = {"inputs": [{"id": "k"}], "servers": {"a": {"type": "http", "url": "https://h/mcp"}}}
    assert load(tmp_path, data, "mcp.json").servers["a"].transport == "http"


def test_keys_for_the_user_interface_are_ignored() -> None:
    spec = entry(autoApprove=["a"], alwaysAllow=["b"], icon="i.png", name="Search!", description="d")
    assert (spec.name, spec.description) == ("s", "d")


@pytest.mark.parametrize(("written", "seconds"), [(60, 60), (1000, 1000), (60_000, 60), (1.5, 1.5)])
def test_a_timeout_is_taken_as_seconds_or_milliseconds(written: float, seconds: float) -> None:
    assert entry(timeout=written).call_timeout_s == seconds


def test_a_timeout_that_is_no_number_is_ignored() -> None:
    assert entry(timeout="long").call_timeout_s == 300 and entry(timeout=True).call_timeout_s == 300


def test_our_own_keys_win_over_translated_ones() -> None:
    spec = entry(timeout=5, call_timeout_s=7, disabledTools=["a"], tools={"deny": ["b"]}, share="hub")
    assert (spec.call_timeout_s, spec.tools.deny, spec.share) == (7, ["b"], "hub")


def test_tools_switched_on_and_off_are_our_rules() -> None:
    spec = entry(disabledTools=["rm"], enabledTools=["ls", "rm"], tools={"policy": {"ls": {"read_only": True}}})
    assert (spec.tools.deny, spec.tools.allow) == (["rm"], ["ls", "rm"])
    assert spec.tools.policy["ls"].read_only is True


def test_a_server_that_is_not_enabled_is_left_out() -> None:
    data = {"a": {"command": "x", "enabled": False}, "b": {"command": "x", "enabled": True}}
    assert list(parse_config({"mcpServers": data}, environ={}).servers) == ["b"]


def test_transport_type_is_a_transport() -> None:
    assert entry(command=None, url="http://h", transportType="sse").transport == "sse"


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"comand": "y"}, "mcpServers.s.comand: unknown key 'comand'; did you mean 'command'?"),
        ({"autoAprove": []}, "did you mean 'autoApprove'?"),
        ({"enabled": "no"}, "mcpServers.s.enabled: expected true or false, found a string"),
        ({"timeout": 0}, "mcpServers.s.timeout: must be greater than 0"),
        ({"disabledTools": "rm"}, "mcpServers.s.disabledTools: expected a list, found a string"),
        ({"disabledTools": [1]}, "mcpServers.s.disabledTools[0]: expected a string, found a number"),
        ({"transportType": "sse"}, "mcpServers.s.transportType: 'sse' needs 'url'"),
        ({"tools": [], "disabledTools": ["a"]}, "mcpServers.s.tools: expected a mapping, found a list"),
    ],
)
def test_errors_name_the_key_as_the_file_has_it(keys: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(**keys)


def test_null_values_are_as_good_as_none() -> None:
    spec = entry(env={"KEY": None, "A": "1"}, args=None, headers=None, cwd=None, disabledTools=None, type=None)
    assert (spec.env, spec.args, spec.transport) == ({"A": "1"}, [], "stdio")
