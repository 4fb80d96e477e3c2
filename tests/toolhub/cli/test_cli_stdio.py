"""`toolhub stdio`: one MCP server on stdin and stdout, as desktop clients start it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_clients import MODES, text_of
from mcp_types import ToolListChangedNotification
from real_processes import Process, below, eventually
from served_hub import TOOLHUB, environment, open_task, served, stub, write_config
from served_hub import text_of as text_of_answer

pytestmark = pytest.mark.anyio

IN_BOTH_ERAS = pytest.mark.parametrize("mode", MODES)


@asynccontextmanager
async def over_stdio(mode: str, folder: Path, *options: str, **callbacks: Any) -> AsyncIterator[Client]:
    command, *arguments = TOOLHUB
    server = StdioServerParameters(command=command, args=[*arguments, "stdio", *options], cwd=folder, env=environment())
    with (folder / "stderr.txt").open("w") as errors, anyio.fail_after(30):
        async with Client(stdio_client(server, errlog=errors), mode=mode, **callbacks) as client:
            yield client
    assert (folder / "stderr.txt").read_text() == ""


@IN_BOTH_ERAS
async def test_tools_are_listed_and_called_with_progress(mode: str, tmp_path: Path) -> None:
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    config = write_config(tmp_path, servers={"one": stub(), "other": stub()})
    async with over_stdio(mode, tmp_path, "--config", str(config)) as client:
        assert "one__echo" in [tool.name for tool in (await client.list_tools()).tools]
        server = Process.of(int(text_of(await client.call_tool("one__pid"))))
        assert text_of(await client.call_tool("one__echo", {"text": "hello"})) == "hello"
        await client.call_tool("one__progress", {"steps": 5}, progress_callback=on_progress)
        await eventually(lambda: seen == [1, 2, 3, 4, 5])
        assert server.is_alive
    assert not server.is_alive


@IN_BOTH_ERAS
async def test_changed_tools_are_announced(mode: str, tmp_path: Path) -> None:
    changed = anyio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    config = write_config(tmp_path, servers={"echo": stub()})
    async with over_stdio(mode, tmp_path, "--config", str(config), message_handler=on_message) as client:
        await client.list_tools()
        if mode == "auto":
            async with client.listen(tools_list_changed=True) as changes:
                await client.call_tool("add_tool", {"name": "new"})
                await anext(aiter(changes))
        else:
            await client.call_tool("add_tool", {"name": "new"})
            await changed.wait()
        assert "new" in [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]


async def test_a_running_hub_is_used_where_one_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"echo": stub(), "shared": stub(share="hub")})
    with served(config, "--uds", str(tmp_path / "hub.sock")) as hub, hub.client(unix=True) as http:
        with open_task(http) as task:
            pid = text_of_answer(task.call("pid", "shared"))
        async with over_stdio("auto", tmp_path, "--hub", f"unix://{hub.uds}") as client:
            assert text_of(await client.call_tool("shared__pid")) == pid
            (open_one,) = http.get("/v1/tasks").json()["tasks"]
            assert open_one["id"].startswith("task-")
        await eventually(lambda: http.get("/v1/tasks").json() == {"tasks": []})
        assert len(below(hub.process.pid)) == 3  # the supervisor, and what is shared
