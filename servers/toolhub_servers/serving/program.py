"""The command line of a server that runs alone: `python -m toolhub_servers NAME`, over stdio."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from mcp.server import MCPServer

from toolhub_servers.serving import stdio as _stdio


def make_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of the server module `name`; its options are to be those of `create_server`."""
    return argparse.ArgumentParser(
        prog=f"python -m toolhub_servers {name}",
        description=f"{description} Speaks MCP over stdio: start it from an MCP client.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def serve(parser: argparse.ArgumentParser, create_server: Callable[..., MCPServer]) -> None:
    """Parse the command line and serve over stdio until stdin ends."""
    options = vars(parser.parse_args())
    try:
        server = create_server(**options)
    except ValueError as exc:
        parser.error(str(exc))
    try:
        _stdio.run(server)
    except KeyboardInterrupt:
        pass  # Ctrl-C in the terminal of whoever started us needs no traceback
