"""The recipe of the desktop clients: their files' commands are run as they run them, with a real MCP client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from printed_page import PrintedPage, printed_page

pytestmark = pytest.mark.slow

# The key of the servers in each client's file, and the keys that the client takes for a server over stdio.
FILES = {
    "claude_desktop_config.json": ("mcpServers", {"command", "args"}),
    ".cursor/mcp.json": ("mcpServers", {"type", "command", "args"}),
    ".vscode/mcp.json": ("servers", {"type", "command", "args"}),
}


@pytest.fixture
def page(tmp_path: Path, hub_bin: Path) -> PrintedPage:
    places = [("/home/me/.local/bin", str(hub_bin)), ("/home/me", str(tmp_path))]
    page = printed_page("desktop-clients", tmp_path, addresses=places)
    page.write("servers.json")
    return page


@asynccontextmanager
async def started(entry: dict[str, Any], folder: Path) -> AsyncIterator[Client]:
    """The client of a server that is started as desktop clients do: in another folder, with few variables."""
    environ = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    server = StdioServerParameters(command=entry["command"], args=entry["args"], env=environ, cwd="/")
    with anyio.fail_after(60), (folder / "stderr.txt").open("w") as errors:
        async with Client(stdio_client(server, errlog=errors), mode="legacy") as client:
            yield client


def text_of(result: Any) -> str:
    assert not result.is_error, result
    return str(result.content[0].text)


@pytest.mark.anyio
@pytest.mark.parametrize("name", FILES)
async def test_the_command_of_a_clients_file_serves_the_tools_of_all_servers(name: str, page: PrintedPage) -> None:
    key, fields = FILES[name]
    (entry,) = json.loads(page.file(name))[key].values()
    assert set(entry) == fields and entry.get("type", "stdio") == "stdio"
    async with started(entry, page.folder) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"get_current_time", "execute", "query"} <= names
        assert '"timezone": "UTC"' in text_of(await client.call_tool("get_current_time", {"timezone": "UTC"}))
        await client.call_tool("execute", {"sql": "CREATE TABLE found (title TEXT)"})
    assert (page.folder / "notes.db").exists()


@pytest.mark.anyio
async def test_a_client_over_stdio_uses_the_hub_that_runs(page: PrintedPage, hub_bin: Path) -> None:
    with page.hub(hub_bin=hub_bin) as hub:
        (entry,) = json.loads(page.file("shared.json"))["mcpServers"].values()
        with hub.client() as http:
            async with started(entry, page.folder) as client:
                await client.call_tool("get_current_time", {"timezone": "UTC"})
                assert len(http.get("/v1/tasks").json()["tasks"]) == 1
            assert http.get("/v1/tasks").json()["tasks"] == []


def test_doctor_finds_the_servers_in_order(page: PrintedPage, hub_bin: Path) -> None:
    printed = page.run(page.command("toolhub doctor"), hub_bin)
    assert "time" in printed and "notes" in printed
