"""An MCP server that lets a model use a browser: one Chromium for the whole hub, separate pages for each task.

Tools have the names and arguments of @playwright/mcp. None of them runs a model's code in a page. A task's pages share
cookies and storage with no other task, and end with the task. Pages reach only public addresses, unless `allow_private`
lists others.

Playwright is imported when a server or a renderer is made, so that importing this package is cheap and needs no extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server import MCPServer

from toolhub.errors import MissingExtra
from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import SharedResources
from toolhub_servers.browser.settings import BrowserSettings

if TYPE_CHECKING:
    from toolhub_servers.browser.render import BrowserRenderer

__all__ = ["BrowserSettings", "create_server", "open_renderer"]

OPTIONS = BrowserSettings


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. options: those of `BrowserSettings`.

    context: what the hub gives the server; None: the server runs a Chromium of its own.
    Raises ValueError for an unusable option or if there is no Chromium, MissingExtra if there is no Playwright.
    """
    settings = BrowserSettings(**options)
    _check_playwright()
    from toolhub_servers.browser.server import build

    return build(context, settings)


async def open_renderer(resources: SharedResources, settings: BrowserSettings | None = None) -> BrowserRenderer:
    """Return a renderer of pages on the hub's browser. Raises MissingExtra if there is no Playwright."""
    _check_playwright()
    from toolhub_servers.browser.render import open_renderer

    return await open_renderer(resources, settings or BrowserSettings())


def main() -> None:
    """Run the server as a program; see `toolhub_servers.__main__`."""
    from toolhub_servers.browser.server import main

    main()


def _check_playwright() -> None:
    try:
        from playwright.async_api import Page
    except ImportError as exc:
        raise MissingExtra("browser", "the browser server") from exc
    if not hasattr(Page, "aria_snapshot"):
        raise MissingExtra("browser", "the browser server needs playwright 1.59 or newer and")
