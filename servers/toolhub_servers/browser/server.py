"""The MCP server of one task, on the browser of the hub."""

from __future__ import annotations

from mcp.server import MCPServer

from toolhub.extensions import BuiltinContext
from toolhub_servers.browser.chromium import find_chromium
from toolhub_servers.browser.guard import PublicRules
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.browser.task import TaskBrowser
from toolhub_servers.browser.tools import BrowserTools
from toolhub_servers.serving.tools import make_server


def build(context: BuiltinContext | None, settings: BrowserSettings) -> MCPServer:
    """Return the server. Raises ValueError for options that cannot be used, and where there is no Chromium."""
    find_chromium(settings.executable)
    PublicRules.allowing(settings.allow_private)
    browser = TaskBrowser(context, settings)
    return make_server("toolhub-browser", tools=BrowserTools(browser).mcp_tools(), lifespan=browser.lifespan)
