"""`toolhub stdio`: the hub as one MCP server on this process's stdin and stdout."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection
from pathlib import Path

from toolhub.catalog.first_answers import EarlyMessages, FirstAnswers, answers_path
from toolhub.cli.shared import DEFAULT_FILES, find_config, log_to_stderr, open_task, read_config
from toolhub.cli.shared import run as run_async


def run(
    config: Path | None,
    hub: str | None,
    token: str | None,
    servers: Collection[str] | None,
    *,
    received: EarlyMessages | None,
) -> None:
    """Serve until stdin ends. received: what was read from it already, which is only done for a hub of our own."""
    log_to_stderr("warning")
    run_async(functools.partial(_serve, config, hub, token, servers, received))


async def _serve(
    config: Path | None,
    hub: str | None,
    token: str | None,
    servers: Collection[str] | None,
    received: EarlyMessages | None,
) -> None:
    async with open_task(config, hub, token, None, servers) as task:
        if hub is not None:
            from toolhub.client.mcp_pipe import serve_pipe

            await serve_pipe(hub, token, task.id)
            return
        from toolhub.serve.first_answers_writer import FirstAnswersWriter
        from toolhub.serve.stdio import serve_stdio

        loaded = read_config(config, servers)
        kept = FirstAnswers(answers_path(sys.argv[1:], os.environ))
        writer = FirstAnswersWriter(kept, loaded, source=find_config(config), others=DEFAULT_FILES)
        await serve_stdio(task, loaded.hub, received=received, writer=writer)
