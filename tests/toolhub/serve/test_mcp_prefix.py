"""`hub.tool_prefix`: the names under which MCP clients see the tools of a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_clients import MODES, mcp_client, text_of
from served_hub import TOOLHUB, environment, served, stub, write_config

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("prefix", "names"),
    [("always", ["one__echo", "two__echo"]), ("collision", ["one__echo", "two__echo"]), ("never", ["echo"])],
)
async def test_the_names_are_those_of_the_config_and_qualified_names_work_always(
    prefix: str, names: list[str], tmp_path: Path
) -> None:
    only_echo: dict[str, Any] = {"tools": {"allow": ["echo"]}}
    servers = {"one": stub(**only_echo), "two": stub(**only_echo)}
    with served(write_config(tmp_path, servers=servers, hub={"tool_prefix": prefix})) as hub:
        async with mcp_client(hub) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == names
            for name in {*names, "two__echo"}:
                assert text_of(await client.call_tool(name, {"text": name})) == name
        if prefix == "never":
            assert "hub.tool_prefix is 'never'; not listed: two/echo" in hub.said


async def test_with_always_a_single_servers_tools_have_its_name_too(tmp_path: Path) -> None:
    only_echo: dict[str, Any] = {"tools": {"allow": ["echo"]}}
    with served(write_config(tmp_path, servers={"one": stub(**only_echo)}, hub={"tool_prefix": "always"})) as hub:
        async with mcp_client(hub) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["one__echo"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("prefix", "names"), [("always", ["one__echo"]), ("collision", ["echo"]), ("never", ["echo"])])
async def test_a_client_of_stdio_sees_the_names_of_the_hub_that_it_uses(
    prefix: str, names: list[str], mode: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, servers={"one": stub(tools={"allow": ["echo"]})}, hub={"tool_prefix": prefix})
    with served(config) as hub, anyio.fail_after(60):
        server = StdioServerParameters(
            command=TOOLHUB[0], args=[*TOOLHUB[1:], "stdio", "--hub", hub.http], cwd=tmp_path, env=environment()
        )
        async with Client(stdio_client(server), mode=mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == names
            for name in {*names, "one__echo"}:
                assert text_of(await client.call_tool(name, {"text": name})) == name
