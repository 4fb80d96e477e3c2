"""The command line of a server that runs alone: `python -m toolhub_servers NAME`, over stdio."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer

from toolhub_servers.serving import stdio as _stdio
from toolhub_servers.serving.options import ServiceSettings

_AGAIN = {"action": "append"}
# The flags of options that several servers have, by the option's name.
_FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "base_url": ("--base-url", {"metavar": "URL", "help": "the address of the service"}),
    "model": ("--model", {"metavar": "NAME", "help": "which of its models to ask"}),
    "timeout_s": (
        "--timeout-s",
        {"metavar": "SECONDS", "type": float, "help": "for one answer, with everything that is tried for it"},
    ),
    "readers": (
        "--reader",
        {"metavar": "NAME", "help": "jina, direct or browser; can be given several times and is asked in that order"}
        | _AGAIN,
    ),
    "local_dirs": (
        "--local-dir",
        {"metavar": "DIR", "help": "a folder that files may be read from; can be given several times"} | _AGAIN,
    ),
    "allow_private": (
        "--allow-private",
        {
            "metavar": "HOST:PORT",
            "help": "a host that may be read although its address is not public; can be given several times",
        }
        | _AGAIN,
    ),
}


def make_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of the server module `name`; its options are to be those of `create_server`."""
    return argparse.ArgumentParser(
        prog=f"python -m toolhub_servers {name}",
        description=f"{description} Speaks MCP over stdio: start it from an MCP client.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def add_flag(parser: argparse.ArgumentParser, option: str) -> None:
    """Add the flag of an option that several servers have. Without the flag, the option keeps its default."""
    flag, arguments = _FLAGS[option]
    parser.add_argument(flag, dest=option, default=argparse.SUPPRESS, **arguments)


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
        pass  # Ctrl-C in a terminal needs no traceback


def run(
    name: str,
    description: str,
    create_server: Callable[..., MCPServer],
    settings: type[ServiceSettings],
    **defaults: Any,
) -> None:
    """Serve over stdio, with the flags and the environment variables of these settings.

    Keys come from the environment alone: other users of a machine can see a command line.
    defaults: options whose default in a program differs from that in a hub.
    """
    parser = make_parser(name, description)
    parser.epilog = f"Environment: {', '.join(settings.VARIABLES.values())}."
    parser.set_defaults(**{**defaults, **settings.from_environment()})
    fields = settings.model_fields
    for option in _FLAGS:
        if option in fields or (option == "allow_private" and "web" in fields):
            add_flag(parser, option)

    def create(allow_private: list[str] | None = None, **given: Any) -> MCPServer:
        web = {"web": {"allow_private": allow_private}} if allow_private else {}
        return create_server(**given, **web)

    serve(parser, create)
