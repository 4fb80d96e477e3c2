"""Calling search servers in this process and looking at what the model would see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent


@asynccontextmanager
async def calling(server: MCPServer) -> AsyncIterator[Client]:
    with anyio.fail_after(30):
        async with Client(server) as client:
            yield client


async def told(client: Client, tool: str, **arguments: Any) -> str:
    """Return the text of a call that must succeed."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return text_of(result)


async def told_json(client: Client, tool: str, **arguments: Any) -> Any:
    return json.loads(await told(client, tool, **arguments))


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def error_object(message: str) -> str:
    return json.dumps({"success": False, "error": message, "results": []}, ensure_ascii=False)
