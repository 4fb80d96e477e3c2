"""The MCP server of one task on the hub's browser, and its command line: `python -m toolhub_servers browser`."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer

from toolhub.errors import MissingExtra
from toolhub.extensions import BuiltinContext
from toolhub_servers.browser import create_server
from toolhub_servers.browser.chromium import find_chromium
from toolhub_servers.browser.guard import PublicRules
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.browser.task import TaskBrowser
from toolhub_servers.browser.tools import BrowserTools
from toolhub_servers.serving.program import add_flag, make_parser, serve
from toolhub_servers.serving.server import make_server


def build(context: BuiltinContext | None, settings: BrowserSettings) -> MCPServer:
    """Return the server. Raises ValueError for unusable options, or if there is no Chromium."""
    find_chromium(settings.executable)
    PublicRules.allowing(settings.allow_private)
    browser = TaskBrowser(context, settings)
    return make_server("toolhub-browser", tools=BrowserTools(browser).mcp_tools(), lifespan=browser.lifespan)


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
    add_flag(parser, "allow_private")
    parser.add_argument("--idle-s", type=float, default=defaults.idle_s, help="close pages unused for so many seconds")
    parser.add_argument("--max-tabs", type=int, default=defaults.max_tabs, help="tabs at a time")
    serve(parser, create_from_options)
