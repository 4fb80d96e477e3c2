"""Calling tools of an in-process server and looking at what the model would see."""

from __future__ import annotations

from typing import Any

from mcp import Client
from mcp.types import CallToolResult, TextContent


async def answer(client: Client, tool: str, **arguments: Any) -> str:
    """Return the text of a call that must succeed."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    return text_of(result)


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """Return the text of a call that must fail."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    return text_of(result)


async def created(client: Client) -> str:
    """Return the id of a new sandbox of tool-python."""
    return (await answer(client, "create_sandbox")).removeprefix("Sandbox created with sandbox_id: ")


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text
