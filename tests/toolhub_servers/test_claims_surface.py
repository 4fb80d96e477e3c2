"""What an agent gets of every server through a hub: the schemas as they were published, the prefixes of errors."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_clients import MODES, mcp_client
from served_hub import ServedHub, served, write_config

from tests.toolhub_servers.roster import ALL, NEEDED, make
from toolhub import Hub, HubTask, connect, parse_config
from toolhub.miroflow import ToolManager

pytestmark = pytest.mark.anyio

EVERY = pytest.mark.parametrize("name", ALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def hosting(name: str, folder: Path) -> AsyncIterator[HubTask]:
    """A task of a hub that hosts this server."""
    options: dict[str, Any] = dict(NEEDED.get(name, {}))
    if name == "browser":
        (chromium := folder / "chromium").touch(0o755)
        options["executable"] = str(chromium)
    entry = {"builtin": name, "options": options}
    with anyio.fail_after(60):
        config = parse_config({"hub": {"state_dir": str(folder / "state")}, "servers": {name: entry}})
        async with Hub(config) as hub, hub.task("t") as task:
            yield task


@EVERY
async def test_a_task_reads_the_tools_letter_by_letter_as_the_server_publishes_them(name: str, folder: Path) -> None:
    published = [(tool.name, json.dumps(tool.input_schema)) for tool in await make(name, folder).list_tools()]
    async with hosting(name, folder) as task:
        assert [(tool.name, json.dumps(tool.input_schema)) for tool in await task.tools(name)] == published


@EVERY
async def test_a_tool_that_does_not_exist_is_told_in_the_words_that_loops_look_for(name: str, folder: Path) -> None:
    async with hosting(name, folder) as task:
        result = await task.call(name, "no_such_tool", {})
        assert result.is_error and result.text == "Unknown tool: no_such_tool"


@EVERY
async def test_arguments_of_another_type_are_told_in_the_words_that_loops_look_for(name: str, folder: Path) -> None:
    async with hosting(name, folder) as task:
        taking = [tool for tool in await task.tools(name) if tool.input_schema["properties"]]
        for tool in taking:
            first = next(iter(tool.input_schema["properties"]))
            result = await task.call(name, tool.name, {first: {"neither": "text nor number"}})
            assert result.is_error and result.text.startswith(f"Error executing tool {tool.name}: "), result.text
    assert taking


# One without a title, one with everything there is in a schema of ours.
TWO = ("google_search", "sqlite")


async def published_by(name: str, folder: Path) -> dict[str, str]:
    return {tool.name: json.dumps(tool.input_schema) for tool in await make(name, folder).list_tools()}


def program(name: str, folder: Path) -> dict[str, Any]:
    flags = ["--backend", "local", "--folder", str(folder)] if name == "google_search" else []
    return {"command": sys.executable, "args": ["-m", "toolhub_servers", name, *flags]}


@pytest.mark.parametrize("name", TWO)
async def test_a_program_publishes_the_same_letters(name: str, folder: Path) -> None:
    entry = program(name, folder)
    with anyio.fail_after(60):
        config = parse_config({"hub": {"state_dir": str(folder / "state")}, "servers": {name: entry}})
        async with Hub(config) as hub, hub.task("t") as task:
            found = {tool.name: json.dumps(tool.input_schema) for tool in await task.tools(name)}
    assert found == await published_by(name, folder)


@pytest.fixture
def hub(folder: Path) -> Iterator[ServedHub]:
    """A served hub with both of them."""
    servers = {name: {"builtin": name, "options": NEEDED.get(name, {})} for name in TWO}
    with served(write_config(folder, servers=servers), "--uds", str(folder / "hub.sock")) as hub:
        yield hub


async def test_every_interface_of_a_hub_passes_the_same_letters_on(hub: ServedHub, folder: Path) -> None:
    published = {tool: schema for name in TWO for tool, schema in (await published_by(name, folder)).items()}
    with anyio.fail_after(60):
        for mode in MODES:
            async with mcp_client(hub, mode) as client:
                listed = (await client.list_tools()).tools
                assert {tool.name: json.dumps(tool.input_schema) for tool in listed} == published, mode
        async with connect(hub.http) as remote, remote.task("t") as task:
            assert {tool.name: json.dumps(tool.input_schema) for tool in await task.tools()} == published
        configs = [{"name": name, "params": program(name, folder)} for name in TWO]
        async with ToolManager(configs, hub=f"unix://{hub.uds}") as manager:
            definitions = await manager.get_all_tool_definitions()
    given = {tool["name"]: json.dumps(tool["schema"]) for server in definitions for tool in server["tools"]}
    assert given == published
