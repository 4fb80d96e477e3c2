"""`toolhub stdio`: the hub as one MCP server on this process's stdin and stdout."""

from __future__ import annotations

import functools
from pathlib import Path

from toolhub.cli.shared import log_to_stderr, open_task, read_config
from toolhub.cli.shared import run as run_async
from toolhub.serve.stdio import serve_stdio


def run(config: Path | None, hub: str | None, token: str | None) -> None:
    log_to_stderr("warning")
    run_async(functools.partial(_serve, config, hub, token))


async def _serve(config: Path | None, hub: str | None, token: str | None) -> None:
    # The config of a running hub is not known here.
    prefix = read_config(config).hub.tool_prefix if hub is None else "collision"
    async with open_task(config, hub, token, None) as task:
        await serve_stdio(task, prefix=prefix)
