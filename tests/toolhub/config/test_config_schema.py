"""The JSON schema of a config: it accepts what the loader accepts, and it explains every key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from toolhub.config import load_config, parse_config
from toolhub.config.schema import config_schema
from toolhub.errors import ConfigError

pytestmark = pytest.mark.quick

CONFIGS = Path(__file__).parents[3] / "configs"
EXAMPLES = sorted(CONFIGS.glob("*.yaml"))


def accepts(data: Any) -> bool:
    return bool(jsonschema.Draft7Validator(config_schema()).is_valid(data))


def test_the_committed_schema_is_that_of_the_models() -> None:
    committed = json.loads((CONFIGS / "hub.schema.json").read_text())
    assert committed == config_schema(), "run: toolhub config schema > configs/hub.schema.json"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_names_the_schema_and_follows_it(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=hub.schema.json\n")
    jsonschema.validate(yaml.safe_load(path.read_text()), config_schema())
    load_config(path, environ={})


@pytest.mark.parametrize(
    "section",
    [
        {"servers": {"a": {"command": "x", "args": ["-p", 80, True], "env": {"PORT": 80}}}},
        {"servers": {"a": {"url": "http://h/mcp", "type": "streamable-http", "disabled": "${OFF:-true}"}}},
        {"hub": None, "servers": {"a": {"builtin": "clock", "tools": None, "idle_s": None}}},
        {"hub": {"port": "${PORT:-80}", "log_level": "${LEVEL:-info}"}, "sandbox": {"profiles": {"w": {"pool": 1}}}},
        {"mcpServers": {"a": {"command": "x", "autoApprove": []}}},
    ],
    ids=str,
)
def test_what_the_loader_accepts_follows_the_schema(section: dict[str, Any]) -> None:
    parse_config(section, environ={})
    assert accepts(section)


@pytest.mark.parametrize(
    "section",
    [
        {"server": {}},
        {"hub": {"port": 70000}},
        {"hub": {"port": "many"}},
        {"servers": {"a": {}}},
        {"servers": {"a": {"command": "x", "shar": "hub"}}},
        {"servers": {"a": {"command": "x", "share": "all"}}},
        {"limits": {"queue": -1}},
        {"llm": {}},
    ],
    ids=str,
)
def test_what_the_loader_refuses_does_not_follow_the_schema(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse_config(section, environ={})
    assert not accepts(section)


def test_every_key_is_explained_with_its_unit_and_default() -> None:
    schema = config_schema()
    sections = [schema, *schema["$defs"].values()]
    keys = {name: key for section in sections for name, key in section.get("properties", {}).items()}
    assert len(keys) > 100 and not [name for name, key in keys.items() if not key["description"]]
    assert keys["start_timeout_s"]["default"] == 30 and "econds" in keys["start_timeout_s"]["description"]
    assert all("econds" in key["description"] for name, key in keys.items() if name.endswith("_s"))
    assert all("ytes" in key["description"] for name, key in keys.items() if name.endswith("_bytes"))
