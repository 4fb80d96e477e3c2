"""The page about the servers says what they are: their modules, tools, options with defaults, variables and flags."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp.server import MCPServer
from mcp.types import Tool
from pydantic import BaseModel
from toolhub_servers.browser import BrowserSettings
from toolhub_servers.models.api import ModelSettings
from toolhub_servers.scrape.settings import PageSettings
from toolhub_servers.search.registry import settings_model
from toolhub_servers.serving import program
from toolhub_servers.web.settings import WebSettings

from tests.toolhub_servers.roster import ALL, SERVERS, factory, make, module_of

TEXT = (SERVERS.parent / "README.md").read_text()
SECTIONS = dict(re.findall(r"^##+ (\S.*?)\n(.*?)(?=^#+ |\Z)", TEXT, re.DOTALL | re.MULTILINE))

# What `**options` of a factory are.
SETTINGS: Mapping[str, type[BaseModel]] = {
    name: module_of(name).OPTIONS for name in ALL if hasattr(module_of(name), "OPTIONS")
}
# Sections that several servers link to.
SHARED: Mapping[str, type[BaseModel]] = {
    "Searching": settings_model(),
    "Reading pages": PageSettings,
    "Asking a model": ModelSettings,
    "The web": WebSettings,
}
# Options that are explained in a section of their own.
ELSEWHERE = {"The web": WebSettings, "browser": BrowserSettings}
# Objects, for programs that make a server themselves.
NOT_IN_A_CONFIG = {"context", "renderer", "settings", "now", "options"}
# Variables that say how any program shows and places things.
GENERAL = re.compile(r"HOME|PATH|LANG(UAGE)?|LC_\w+|COLUMNS|LINES|XDG_\w+|TMPDIR|TEMP|TMP|(PYTHON|PYDANTIC)\w*")


def rows(section: str) -> dict[str, str]:
    """The options of a section's own table and their defaults."""
    table = re.search(r"^\| option \|.*?\n\|[-|]+\n((?:\|.*\n)+)", SECTIONS[section], re.MULTILINE)
    return dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \|", table[1], re.MULTILINE)) if table else {}


def linked(section: str) -> list[str]:
    anchors = set(re.findall(r"\]\(#([\w-]+)\)", SECTIONS[section]))
    return [name for name in SHARED if name.lower().replace(" ", "-") in anchors]


def shown(name: str, value: Any) -> str:
    """A default as the tables have it: as in a config, bytes with a unit, a section by what is unusual in it."""
    if isinstance(value, BaseModel):
        usual = type(value)().model_dump()
        value = {key: item for key, item in value.model_dump().items() if item != usual[key]}
    if value is None or value == "":
        return "none"
    if name.endswith("_bytes"):
        return f"{value >> 30} GiB" if value % (1 << 30) == 0 else f"{value >> 20} MiB"
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, dict):
        value = {key: int(item) if isinstance(item, float) else item for key, item in value.items()}
    return str(yaml.safe_dump(value, default_flow_style=True, width=1000)).removesuffix("\n").removesuffix("\n...")


def options_of(settings: BaseModel, prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel) and not isinstance(value, tuple(ELSEWHERE.values())):
            found |= options_of(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = shown(name, value)
    return found


def parameters_of(name: str) -> dict[str, str]:
    """The named parameters of a factory that a config can give."""
    parameters = inspect.signature(factory(name)).parameters
    return {key: shown(key, p.default) for key, p in parameters.items() if key not in NOT_IN_A_CONFIG}


def signature(tool: Tool) -> str:
    """`name(required, optional=default)`, from the schema that a model sees."""
    schema = tool.input_schema
    required = schema.get("required", [])
    parts = [
        key if key in required else f"{key}={json.dumps(value.get('default'))}"
        for key, value in schema["properties"].items()
    ]
    return f"{tool.name}({', '.join(parts)})"


def test_the_list_at_the_top_has_every_server_and_no_other() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(#\1\)", TEXT, re.MULTILINE)
    assert sorted(listed) == sorted(ALL)
    assert set(SECTIONS) == {
        *ALL,
        *SHARED,
        "In a hub",
        "Alone",
        "In Python",
        "Confined processes",
        "How to add a server",
        "How to add a search backend",
    }


@pytest.mark.anyio
@pytest.mark.parametrize("name", ALL)
async def test_a_section_has_its_servers_tools(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tools = await make(name, tmp_path).list_tools()
    assert tools
    assert re.findall(r"^- `(\w+\(.*?\))`", SECTIONS[name], re.MULTILINE) == [signature(tool) for tool in tools]


@pytest.mark.parametrize("name", ALL)
def test_a_section_has_every_option_with_its_default(name: str) -> None:
    wanted = parameters_of(name)
    if name in SETTINGS:
        wanted |= options_of(SETTINGS[name]())
    written: dict[str, str] = {}
    for section in linked(name):
        if section != "The web" and not (section == "Reading pages" and "pages" in wanted):
            written |= rows(section)
    assert written | rows(name) == wanted


@pytest.mark.parametrize("name", ALL)
def test_a_section_says_how_its_server_tells_a_failure(name: str) -> None:
    told = re.findall(
        r"\bErrors\b.*?(?:`|texts)|(?:Failures|Its errors) are errors|a problem is its first line", SECTIONS[name], re.S
    )
    assert len(told) == 1


@pytest.mark.parametrize("section", SHARED)
def test_a_shared_section_has_every_option_with_its_default(section: str) -> None:
    assert rows(section) == options_of(SHARED[section]())


@pytest.mark.parametrize("name", ALL)
def test_options_that_are_explained_elsewhere_are_linked(name: str) -> None:
    """`web`, `pages` and `browser` are sections of their own, linked where the option is."""
    explained = {"web": "(#the-web)", "pages": "(#reading-pages)", "browser": "(#browser)"}
    for section in (name, *linked(name)):
        for option in {*rows(section)} & {*explained}:
            assert explained[option] in SECTIONS[section]


class Recorder(dict[str, str]):
    """An environment without variables that remembers for which ones it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return default

    def __getitem__(self, key: str) -> str:
        self.asked.add(key)
        raise KeyError(key)


@pytest.mark.parametrize("name", ALL)
def test_a_section_has_the_flags_and_the_variables_of_its_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsers: list[argparse.ArgumentParser] = []

    def serve(parser: argparse.ArgumentParser, create: Callable[..., MCPServer]) -> None:
        parsers.append(parser)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tempfile.tempdir", "/tmp")
            try:
                create(**vars(parser.parse_args([])))
            except (ValueError, OSError):
                pass  # a key that is missing has been asked for all the same

    module = importlib.import_module("toolhub_servers.browser.server") if name == "browser" else module_of(name)
    monkeypatch.setattr(program, "serve", serve)
    if hasattr(module, "serve"):
        monkeypatch.setattr(module, "serve", serve)
    monkeypatch.setattr(os, "environ", recorder := Recorder())
    module.main()
    monkeypatch.undo()
    flags = [action.option_strings[-1] for action in parsers[0]._actions if action.dest != "help"]
    variables = {variable for variable in recorder.asked if not GENERAL.fullmatch(variable)}
    (alone,) = re.findall(r"^Alone: (.*?)(?=\n\n|\Z)", SECTIONS[name], re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r"`(--[\w-]+)", alone)) == sorted(flags)
    assert set(re.findall(r"`([A-Z][A-Z0-9_]+)`", alone)) == variables
