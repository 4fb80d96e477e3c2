"""A client that names its servers: to it there are no others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp_clients import MODES, mcp_client, text_of
from served_hub import TOOLHUB, ServedHub, environment, served, stub, write_config
from toolhub_command import Shell

pytestmark = pytest.mark.anyio

IN_BOTH_ERAS = pytest.mark.parametrize("mode", MODES)
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


def config_of(folder: Path, **hub: Any) -> Path:
    only: dict[str, Any] = {"tools": {"allow": ["echo"]}}
    servers = {"one": stub(**only), "two": stub(**only), "secret": stub(tools={"allow": ["pid"]})}
    return write_config(folder, servers=servers, hub=hub)


async def names_of(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


async def refusal_of(client: Client, name: str, arguments: dict[str, Any] | None = None) -> str:
    """Return the error of a tool call, which is a result in some cases and an error in others."""
    try:
        result = await client.call_tool(name, arguments or {})
    except MCPError as exc:
        return str(exc)
    assert result.is_error
    return str(result.content)


@asynccontextmanager
async def selected(hub: ServedHub, mode: str, names: str) -> AsyncIterator[Client]:
    async with mcp_client(hub, mode, headers={"X-Toolhub-Servers": names}) as client:
        yield client


@IN_BOTH_ERAS
async def test_tools_of_other_servers_are_neither_listed_nor_called(mode: str, tmp_path: Path) -> None:
    with served(config_of(tmp_path)) as hub, anyio.fail_after(60):
        async with selected(hub, mode, "one, two") as client, mcp_client(hub, mode) as other:
            assert "pid" in await names_of(other)
            assert text_of(await other.call_tool("pid"))
            assert await names_of(client) == ["one__echo", "two__echo"]
            assert text_of(await client.call_tool("two__echo", {"text": "a"})) == "a"
            for name in ("pid", "secret__pid"):
                refused = await refusal_of(client, name)
                assert f"Unknown tool: {name}" in refused and "secret" not in refused.replace(name, "")


@IN_BOTH_ERAS
async def test_with_one_server_named_it_passes_as_if_it_were_the_only_one(mode: str, tmp_path: Path) -> None:
    with served(config_of(tmp_path)) as hub, anyio.fail_after(60):
        async with selected(hub, mode, "two") as client:
            assert await names_of(client) == ["echo"]
            assert text_of(await client.call_tool("echo", {"text": "a"})) == "a"
            assert "secret__pid" in await refusal_of(client, "secret__pid")


@IN_BOTH_ERAS
async def test_a_search_finds_nothing_of_other_servers(mode: str, tmp_path: Path) -> None:
    with served(config_of(tmp_path, tools="search")) as hub, anyio.fail_after(60):
        async with selected(hub, mode, "one,two") as client:
            (find, _) = (await client.list_tools()).tools
            assert "secret" not in str(find.description)
            found = await client.call_tool("find_tools", {"query": "pid process", "limit": 20})
            assert "pid" not in [tool["name"] for tool in (found.structured_content or {})["tools"]]
            for name in ("pid", "secret__pid"):
                assert "Unknown tool" in await refusal_of(client, "call_tool", {"name": name})


async def test_two_clients_of_one_task_see_their_own_servers(tmp_path: Path) -> None:
    with served(config_of(tmp_path)) as hub, anyio.fail_after(60):
        headers = {"X-Toolhub-Task": "common"}
        async with (
            mcp_client(hub, headers=headers | {"X-Toolhub-Servers": "one"}) as one,
            mcp_client(hub, headers=headers | {"X-Toolhub-Servers": "two,secret"}) as other,
            mcp_client(hub, headers=headers) as every,
        ):
            for _ in range(2):
                assert await names_of(one) == ["echo"]
                assert await names_of(other) == ["echo", "pid"]
                assert await names_of(every) == ["one__echo", "two__echo", "pid"]
            assert "Unknown tool" in await refusal_of(other, "one__echo", {"text": "a"})


async def test_a_session_keeps_to_the_servers_that_its_first_request_named(tmp_path: Path) -> None:
    with served(config_of(tmp_path)) as hub, hub.client() as http:
        own = {"Accept": "application/json, text/event-stream"}
        begun = http.post("/mcp", json=HELLO, headers=own | {"X-Toolhub-Servers": "one,two"})
        session = own | {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
        request = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        without = http.post("/mcp", json=request, headers=session)
        assert "pid" not in without.text and "one__echo" in without.text
        wider = http.post("/mcp", json=request, headers=session | {"X-Toolhub-Servers": "two,secret"})
        assert "pid" not in wider.text and '"echo"' in wider.text


@pytest.mark.parametrize("names", ["one,other", "One"])
async def test_an_unknown_server_is_refused_by_name(names: str, tmp_path: Path) -> None:
    with served(config_of(tmp_path)) as hub, hub.client() as http:
        own = {"Accept": "application/json, text/event-stream", "X-Toolhub-Servers": names}
        answer = http.post("/mcp", json=HELLO, headers=own)
        assert answer.status_code == 400
        said = answer.json()["error"]["message"]
        assert repr(names.split(",")[-1]) in said and "secret" not in said


async def test_an_empty_header_names_no_server(tmp_path: Path) -> None:
    with served(config_of(tmp_path)) as hub, anyio.fail_after(60):
        async with selected(hub, "legacy", "") as client:
            assert await names_of(client) == []


# --- over stdio -----------------------------------------------------------------------------------------------------


@IN_BOTH_ERAS
@pytest.mark.parametrize("own_hub", [True, False], ids=["a hub of its own", "a hub that runs"])
async def test_stdio_serves_only_the_servers_that_it_was_given(mode: str, own_hub: bool, tmp_path: Path) -> None:
    config = config_of(tmp_path)

    async def check(*options: str) -> None:
        command, *arguments = TOOLHUB
        options = (*arguments, "stdio", *options, "--servers", "one,two")
        server = StdioServerParameters(command=command, args=[*options], cwd=tmp_path, env=environment())
        async with Client(stdio_client(server), mode=mode) as client:
            assert await names_of(client) == ["one__echo", "two__echo"]
            assert text_of(await client.call_tool("one__echo", {"text": "a"})) == "a"
            assert "Unknown tool: secret__pid" in await refusal_of(client, "secret__pid")

    with anyio.fail_after(60):
        if own_hub:
            await check("--config", str(config))
        else:
            with served(config) as hub:
                await check("--hub", hub.http)


def test_stdio_refuses_a_server_that_is_not_configured(tmp_path: Path) -> None:
    config, shell = config_of(tmp_path), Shell(tmp_path)
    refusal = shell.refusal("stdio", "--config", str(config), "--servers", "one,tow")
    assert "there is no server 'tow' in the config; it has one, two, secret" in refusal
    assert "--servers names no server" in shell.refusal("stdio", "--config", str(config), "--servers", "")
