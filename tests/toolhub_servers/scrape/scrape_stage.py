"""Running the servers that read pages, and looking at what a model gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client
from mcp.server import MCPServer
from mcp.types import TextContent
from website.site import Site
from website.standins import CHAT_KEY, JINA_KEY

from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import SharedResources


@asynccontextmanager
async def serving(server: MCPServer) -> AsyncIterator[Client]:
    with anyio.fail_after(60):
        async with Client(server) as client:
            yield client


async def answer(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a call that must succeed."""
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert not result.is_error, block.text
    return block.text


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a call that must fail."""
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert result.is_error, block.text
    return block.text


async def extracted(client: Client, url: str, info: str = "How deep is it?", **more: Any) -> dict[str, Any]:
    """The JSON object that `scrape_and_extract_info` answers with."""
    told = await answer(client, "scrape_and_extract_info", url=url, info_to_extract=info, **more)
    result: dict[str, Any] = json.loads(told)
    return result


def hosted(resources: SharedResources) -> BuiltinContext:
    return BuiltinContext("task", None, resources)


def summary_options(site: Site, **options: Any) -> dict[str, Any]:
    usual = {
        "jina_api_key": JINA_KEY,
        "jina_base_url": site.jina_url,
        "summary_llm_base_url": site.chat_url,
        "summary_llm_model_name": "qwen3-14b",
        "summary_llm_api_key": CHAT_KEY,
        "web": {"allow_private": [site.authority]},
    }
    return {**usual, **options}
