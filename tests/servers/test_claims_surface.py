"""What an agent gets of every server through a hub: the schemas as they were published, the prefixes of errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from roster import ALL, NEEDED, make

from toolhub import Hub, TaskScope, parse_config

pytestmark = pytest.mark.anyio

EVERY = pytest.mark.parametrize("name", ALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@asynccontextmanager
async def hosting(name: str, folder: Path) -> AsyncIterator[TaskScope]:
    """A task of a hub that hosts this server."""
    options: dict[str, Any] = dict(NEEDED.get(name, {}))
    if name == "browser":
        (chromium := folder / "chromium").touch(0o755)
        options["executable"] = str(chromium)
    entry = {"builtin": f"toolhub_servers.{name}:create_server", "options": options}
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
