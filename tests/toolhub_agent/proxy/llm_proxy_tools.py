"""A builtin server whose tool is done when a test says so: once the file of its argument exists."""

from __future__ import annotations

from pathlib import Path

import anyio
from mcp.server import MCPServer


def create_server() -> MCPServer:
    server = MCPServer("llm-proxy-tools")

    @server.tool()
    async def search(until: str, q: str = "") -> str:
        """Search until a file is there."""
        while not await anyio.Path(until).exists():
            await anyio.sleep(0.01)
        return f"found {q} by {Path(until).name}"

    return server
