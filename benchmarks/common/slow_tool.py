"""A builtin server for a hub: one read-only search that takes a fixed time, the same as `scripted.TimedTools`."""

from __future__ import annotations

import anyio
from mcp.server import MCPServer
from mcp.types import ToolAnnotations


def create_server(*, seconds: float, text: str) -> MCPServer:
    """seconds: of every call. text: what it finds, whatever it is asked."""
    server = MCPServer("slow", log_level="WARNING")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def search(q: str) -> str:
        """Searches."""
        await anyio.sleep(seconds)
        return text

    return server
