"""Running a server that asks a model as a program."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer

from toolhub_servers.models.api import ModelSettings
from toolhub_servers.models.media import MediaSettings
from toolhub_servers.serving.program import make_parser, serve


def from_environment(settings: type[ModelSettings]) -> dict[str, str]:
    """The options that MiroFlow sets by environment variables; keys belong nowhere else, least on a command line."""
    return {option: os.environ[name] for option, name in settings.VARIABLES.items() if os.environ.get(name)}


def run(
    name: str,
    description: str,
    create_server: Callable[..., MCPServer],
    settings: type[ModelSettings],
    **defaults: Any,
) -> None:
    """Parse the command line and serve over stdio. defaults: options that a program has other ones for than a hub."""
    parser = make_parser(name, description)
    parser.epilog = f"Environment: {', '.join(settings.VARIABLES.values())}."
    parser.set_defaults(**from_environment(settings))
    _add_options(parser, has_files=issubclass(settings, MediaSettings))

    def create(allow_private: list[str] | None = None, **given: Any) -> MCPServer:
        web = {"web": {"allow_private": allow_private}} if allow_private else {}
        return create_server(**{**defaults, **given, **web})

    serve(parser, create)


def _add_options(parser: argparse.ArgumentParser, *, has_files: bool) -> None:
    unset = argparse.SUPPRESS
    parser.add_argument("--base-url", metavar="URL", default=unset, help="the address of the service")
    parser.add_argument("--model", metavar="NAME", default=unset, help="which of its models to ask")
    parser.add_argument(
        "--timeout-s", metavar="SECONDS", type=float, default=unset, help="for an answer with all that is repeated"
    )
    if not has_files:
        return
    parser.add_argument(
        "--local-dir",
        metavar="DIR",
        dest="local_dirs",
        action="append",
        default=unset,
        help="a folder that files may be read from; can be given several times",
    )
    parser.add_argument(
        "--allow-private",
        metavar="HOST:PORT",
        action="append",
        default=unset,
        help="a host that may be read although its address is not public; can be given several times",
    )
