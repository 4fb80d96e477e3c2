"""The MCP gateway on this process's stdin and stdout."""

from __future__ import annotations

from typing import Any

import anyio
from mcp.server.stdio import stdio_server

from toolhub import __version__
from toolhub.serve.mcp_gateway import Context, McpGateway, Tools
from toolhub.tool_names import Prefix


async def serve_stdio(task: Any, *, prefix: Prefix) -> None:
    """Serve one MCP client from `task` (a HubTask or a RemoteTask) until stdin ends. prefix: see `tool_names`."""

    async def only_task(context: Context) -> Tools:
        chosen: Tools = task
        return chosen

    gateway = McpGateway(only_task, version=__version__, prefix=prefix)
    async with anyio.create_task_group() as tasks:
        if hasattr(task, "on_tools_changed"):  # a RemoteTask has none
            task.on_tools_changed(lambda: tasks.start_soon(gateway.announce_change))
        async with stdio_server() as (read, write):
            await gateway.server.run(read, write, gateway.server.create_initialization_options())
        tasks.cancel_scope.cancel()
