"""`toolhub stdio`: the hub as one MCP server on this process's stdin and stdout."""

from __future__ import annotations

import functools
from pathlib import Path

from toolhub.cli.shared import log_to_stderr, open_task, read_config
from toolhub.cli.shared import run as run_async


def run(config: Path | None, hub: str | None, token: str | None) -> None:
    log_to_stderr("warning")
    run_async(functools.partial(_serve, config, hub, token))


async def _serve(config: Path | None, hub: str | None, token: str | None) -> None:
    async with open_task(config, hub, token, None) as task:
        if hub is not None:
            from toolhub.client.mcp_pipe import serve_pipe

            await serve_pipe(hub, token, task.id)
        else:
            from toolhub.serve.stdio import serve_stdio

            await serve_stdio(task, read_config(config).hub)
