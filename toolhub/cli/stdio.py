"""`toolhub stdio`: the hub as one MCP server on this process's stdin and stdout."""

from __future__ import annotations

import functools
from pathlib import Path

import anyio
from mcp.server.stdio import stdio_server

from toolhub import __version__
from toolhub.cli.shared import log_to_stderr, open_task
from toolhub.cli.shared import run as run_async
from toolhub.serve.front import Context, Front, Tools


def run(config: Path | None, hub: str | None, token: str | None) -> None:
    log_to_stderr("warning")
    run_async(functools.partial(_serve, config, hub, token))


async def _serve(config: Path | None, hub: str | None, token: str | None) -> None:
    async with open_task(config, hub, token, None) as task, anyio.create_task_group() as tasks:

        async def only_task(context: Context) -> Tools:
            chosen: Tools = task
            return chosen

        front = Front(only_task, version=__version__)
        if hub is None:
            task.on_tools_changed(lambda: tasks.start_soon(front.announce_change))
        async with stdio_server() as (read, write):
            await front.server.run(read, write, front.server.create_initialization_options())
        tasks.cancel_scope.cancel()
