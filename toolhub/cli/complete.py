"""The names that a shell completes: of servers, of their tools as far as they are known without a start, of errors.

A completion prints nothing else and raises nothing: without a config there is nothing to complete.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import typer


def complete_server(context: typer.Context, incomplete: str) -> list[str]:
    """Servers of the running hub, or of the config."""
    try:
        return _beginning_with(incomplete, _servers(context))
    except Exception:  # see the module
        return []


def complete_tool(context: typer.Context, incomplete: str) -> list[str]:
    """Tools of the server that the command names."""
    try:
        from toolhub.cli.servers import known_tools
        from toolhub.cli.shared import find_config, run
        from toolhub.config import load_config

        config = load_config(find_config(context.params.get("config")))
        server = config.servers[context.params["server"]]
        if ":" in (server.builtin or ""):
            return []  # a shell completes in any folder: no function that a config there names may run
        tools = run(functools.partial(known_tools, config, server))
        return _beginning_with(incomplete, tools or ())
    except Exception:  # see the module
        return []


def complete_error(incomplete: str) -> list[str]:
    """Classes of errors."""
    try:
        from toolhub.cli.errors import entries

        return _beginning_with(incomplete, entries())
    except Exception:  # see the module
        return []


def _servers(context: typer.Context) -> Iterable[str]:
    if hub := context.params.get("hub"):
        from toolhub.client import connect

        token = context.params.get("token_file") or context.params.get("token")
        return connect(hub, token=token).server_names_blocking()
    from toolhub.cli.shared import find_config
    from toolhub.config.document import read_document

    # The document and not the config, because variables of the config may be unset in this shell.
    data = read_document(find_config(context.params.get("config"))).data
    return [name for section in ("servers", "mcpServers") for name in data.get(section) or ()]


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
