"""The example configs: each can be loaded, works, and together they show every key there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from toolhub.config import load_config, parse_config
from toolhub.config.models import HubSettings, Limits
from toolhub.config.sandbox import E2BSettings, SandboxProfile, SandboxSettings
from toolhub.config.server import RestartSettings, ServerSpec, ToolRules, ToolSettings

CONFIGS = Path(__file__).parents[1] / "configs"
HUB = CONFIGS / "hub.yaml"


def keys_of(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """hub.yaml as plain data."""
    data: dict[str, Any] = yaml.safe_load(HUB.read_text())
    return data


@pytest.mark.quick
def test_every_example_is_loaded_by_a_test_below() -> None:
    assert {path.name for path in CONFIGS.iterdir()} == {"hub.yaml", "minimal.yaml", "mcp_servers.json"}


@pytest.mark.quick
def test_the_minimal_config_loads() -> None:
    assert list(load_config(CONFIGS / "minimal.yaml", environ={}).servers) == ["time"]


@pytest.mark.quick
def test_the_desktop_file_loads() -> None:
    config = load_config(CONFIGS / "mcp_servers.json", environ={"TOOLHUB_FILES": "/data"})
    assert list(config.servers) == ["time", "filesystem", "everything"]
    assert config.servers["filesystem"].args[-1] == "/data"


@pytest.mark.quick
def test_the_complete_config_loads_without_any_variable() -> None:
    config = load_config(HUB, environ={"HOME": "/home/me"})
    assert list(config.servers) == ["files", "clock", "tool-python", "time", "sqlite"]
    assert config.hub.token is None and config.hub.uds is None
    assert config.hub.state_path == Path("/home/me/.local/state/toolhub")


@pytest.mark.quick
def test_the_complete_config_takes_its_variables() -> None:
    environ = {"TOOLHUB_TOKEN": "secret", "TOOLHUB_SOCKET": "/run/hub.sock", "TOOLHUB_FILES": "/data"}
    config = load_config(HUB, environ=environ)
    assert config.hub.token is not None and config.hub.token.get_secret_value() == "secret"
    assert config.hub.uds == Path("/run/hub.sock") and config.servers["files"].cwd == "/data"


@pytest.mark.quick
def test_the_server_that_is_switched_off_would_load_too(shown: dict[str, Any]) -> None:
    remote = shown["servers"]["remote"] | {"disabled": False}
    spec = parse_config({"servers": {"remote": remote}}, environ={"REMOTE_TOKEN": "t"}).servers["remote"]
    assert spec.transport == "http" and spec.headers == {"Authorization": "Bearer t"}


@pytest.mark.quick
@pytest.mark.parametrize("section, model", [("hub", HubSettings), ("limits", Limits), ("sandbox", SandboxSettings)])
def test_the_complete_config_shows_every_key_of_a_section(
    shown: dict[str, Any], section: str, model: type[BaseModel]
) -> None:
    assert set(shown[section]) == keys_of(model)


@pytest.mark.quick
def test_the_complete_config_shows_every_key_of_a_sandbox(shown: dict[str, Any]) -> None:
    sandbox = shown["sandbox"]
    assert set(sandbox["e2b"]) == keys_of(E2BSettings)
    web = sandbox["profiles"]["web"]
    assert set(web) == keys_of(SandboxProfile)
    defaults = SandboxProfile().model_dump()
    assert {key for key, value in web.items() if value != defaults[key]} == {"network"}


@pytest.mark.quick
def test_the_complete_config_shows_every_section(shown: dict[str, Any]) -> None:
    assert set(shown) == {"hub", "limits", "sandbox", "servers", "mcpServers"}


@pytest.mark.quick
def test_the_complete_config_shows_every_key_of_a_server(shown: dict[str, Any]) -> None:
    servers = shown["servers"]
    assert {key for server in servers.values() for key in server} == keys_of(ServerSpec) - {"name"}
    files = servers["files"]
    assert keys_of(ServerSpec) - set(files) == {"name", "url", "headers", "builtin", "options"}
    assert set(files["restart"]) == keys_of(RestartSettings)
    assert set(files["tools"]) == keys_of(ToolRules)
    assert set(files["tools"]["policy"]["read_file"]) == keys_of(ToolSettings)


@pytest.mark.quick
def test_values_that_are_said_to_be_defaults_are(shown: dict[str, Any]) -> None:
    """The others are marked in the file."""
    limits, restart = Limits(), RestartSettings()
    assert shown["limits"] == limits.model_dump()
    assert shown["servers"]["files"]["restart"] == restart.model_dump()
    defaults = {name: field.default for name, field in ServerSpec.model_fields.items()}
    same = {key for key, value in shown["servers"]["files"].items() if value == defaults[key]}
    marked = {
        "description",
        "transport",
        "command",
        "args",
        "cwd",
        "env",
        "inherit_env",
        "stateful",
        "restart",
        "tools",
    }
    assert set(shown["servers"]["files"]) - same == marked
    sandbox = SandboxSettings().model_dump()
    own = {"profiles": shown["sandbox"]["profiles"], "e2b": sandbox["e2b"] | {"api_key": "${E2B_API_KEY:-}"}}
    assert shown["sandbox"] == sandbox | own
    hub = {name: field.default for name, field in HubSettings.model_fields.items()}
    variable = {"uds", "token", "state_dir", "max_starts"}
    assert {key for key, value in shown["hub"].items() if value != hub[key]} == variable


def test_the_complete_config_works_as_it_is(tmp_path: Path) -> None:
    """Doctor starts every server; where pip has put our scripts is on the PATH, as it is for users."""
    scripts = Path(sys.executable).parent
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOOLHUB_")}
    environ = kept | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "toolhub.cli", "doctor", "--json", "--config", str(HUB)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(server["ok"] for server in json.loads(done.stdout)["servers"])
