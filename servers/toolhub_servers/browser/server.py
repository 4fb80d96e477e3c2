"""The MCP server of one task, on the browser of the hub."""

from __future__ import annotations

from mcp.server import MCPServer

from toolhub.extensions import BuiltinContext
from toolhub_servers._tools import make_server
from toolhub_servers.browser.chromium import find_chromium
from toolhub_servers.browser.guard import PublicRules
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.browser.task import TaskBrowser
from toolhub_servers.browser.tools import BrowserTools


def build(host: BuiltinContext | None, settings: BrowserSettings) -> MCPServer:
    """Return the server. Raises ValueError for options that cannot be used, and where there is no Chromium."""
    find_chromium(settings.executable)
    PublicRules.allowing(settings.allow_private)
    browser = TaskBrowser(host, settings)
    return make_server("toolhub-browser", tools=BrowserTools(browser).listed(), lifespan=browser.lifespan)
