"""The command line of the browser server: `python -m toolhub_servers browser`."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer

from toolhub.errors import MissingExtra
from toolhub_servers.browser import BrowserSettings, create_server
from toolhub_servers.serving.program import make_parser, serve


def create_from_options(**options: Any) -> MCPServer:
    """`create_server`; raises ValueError also if Playwright is missing."""
    try:
        return create_server(**options)
    except MissingExtra as exc:
        raise ValueError(str(exc)) from exc


def main() -> None:
    defaults = BrowserSettings()
    parser = make_parser("browser", "Lets a model use a browser.")
    parser.add_argument("--executable", metavar="PATH", help="the Chromium to run; default: the one on PATH")
    parser.add_argument(
        "--no-sandbox", dest="sandbox", action="store_false", help="run Chromium without its own sandbox"
    )
    parser.add_argument("--downloads-dir", metavar="DIR", help="where files go; default: a temporary folder")
    parser.add_argument(
        "--allow-private",
        metavar="HOST",
        action="append",
        default=[],
        help="a host that may lead to an address that is not public; can be given several times",
    )
    parser.add_argument("--idle-s", type=float, default=defaults.idle_s, help="close pages unused for so many seconds")
    parser.add_argument("--max-tabs", type=int, default=defaults.max_tabs, help="tabs at a time")
    serve(parser, create_from_options)
