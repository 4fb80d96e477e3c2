"""A server for this process whose tools answer in every way that MCP knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import EmbeddedResource, TextContent, TextResourceContents
from pydantic import BaseModel


class Point(BaseModel):
    x: float
    y: float | None = None


class CallSignals:
    """What a test and the tools share."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.began = anyio.Event()
        self.was_cancelled = anyio.Event()
        self.may_end = anyio.Event()
        self.ended = anyio.Event()


def create_server(stage: CallSignals | None = None) -> MCPServer:
    """Return the server."""
    stage = stage or CallSignals()

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        stage.ended.set()

    server: MCPServer = MCPServer("lean", lifespan=lifespan)
    add_answers(server)
    add_conduct(server, stage)
    return server


def add_answers(server: MCPServer) -> None:
    @server.tool()
    async def text(text: str) -> str:
        return text

    @server.tool()
    async def point(x: float) -> Point:
        return Point(x=x)

    @server.tool()
    async def image() -> Image:
        return Image(data=b"\x89PNG", format="png")

    @server.tool()
    async def blocks() -> list[Any]:
        inside = TextResourceContents(uri="memo://1", text="ü\u2028", mime_type="text/plain")
        return [TextContent(type="text", text="one"), EmbeddedResource(type="resource", resource=inside)]

    @server.tool()
    async def nothing() -> None:
        return None

    @server.tool()
    async def refuses() -> str:
        raise ToolError("no such page")

    @server.tool()
    async def crashes() -> str:
        raise ValueError("detail 42")

    @server.tool()
    async def answers_with_a_code() -> str:
        raise MCPError(code=-32042, message="not here", data={"where": ["there", 1]})

    @server.tool()
    def in_a_thread(count: int) -> list[int]:
        return list(range(count))


def add_conduct(server: MCPServer, stage: CallSignals) -> None:
    @server.tool()
    async def keep(value: dict[str, Any]) -> dict[str, Any]:
        stage.kept.append(value)
        return value

    @server.tool()
    async def reports(steps: int, ctx: Context) -> str:
        for step in range(1, steps + 1):
            await ctx.report_progress(step, steps, f"step {step}")
        await ctx.session.send_log_message("info", {"steps": steps}, logger="lean")
        return "done"

    @server.tool()
    async def waits_for_ever() -> None:
        stage.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            stage.was_cancelled.set()

    @server.tool()
    async def resists() -> str:
        """Cannot be cancelled until the test lets it."""
        stage.began.set()
        with anyio.CancelScope(shield=True):
            await stage.may_end.wait()
        return "at last"

    @server.tool()
    async def asks_back(ctx: Context) -> str:
        try:
            await ctx.elicit("sure?", Point)
        except MCPError as exc:
            return f"{exc.code}: {exc.message}"
        return "was answered"
