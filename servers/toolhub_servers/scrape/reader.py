"""An MCP server that makes Markdown of pages, documents and files: MiroFlow's `tool-reader`, which is `markitdown_mcp`.

It converts what `reading` converts. A failure and an invalid URI are errors of the tool, not texts.
"""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from toolhub.errors import ToolhubError
from toolhub.extensions import BuiltinContext
from toolhub_servers.scrape.model import PageRenderer
from toolhub_servers.scrape.uris import Uris, UriSettings
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool

OPTIONS = UriSettings
missing_options = missing_options_of(UriSettings)


def create_server(
    *, context: BuiltinContext | None = None, renderer: PageRenderer | None = None, **options: Any
) -> MCPServer:
    """Return the server; the parameters are those of `reading.create_server`. Raises ValueError."""
    uris = Uris(validated(UriSettings, options), renderer)
    server_context = ServerContext(context)

    async def convert_to_markdown(uri: str) -> str:
        """Convert what an http:, https:, file: or data: URI names to Markdown."""
        try:
            return (await uris.read(server_context.resources, uri)).noted_text
        except (ToolhubError, OSError, ValueError) as exc:
            raise ToolError(str(exc)) from exc

    tools = [read_only_tool(convert_to_markdown, is_titled=True)]
    prefetches = {"convert_to_markdown": uris.prefetch(server_context)}
    return make_server("toolhub-reader", tools=tools, prefetches=prefetches, lifespan=server_context.lifespan)


def main() -> None:
    run("reader", "Makes Markdown of pages, documents and files, as markitdown_mcp does.", create_server, UriSettings)
