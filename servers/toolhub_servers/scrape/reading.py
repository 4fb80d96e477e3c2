"""An MCP server that makes Markdown of pages, documents and files: MiroFlow's `tool-reading`.

Tool and texts are those that the models know. What differs, on purpose: no process is started for a call, local files
are read only below `local_dirs`, private addresses and datasets are not read.
"""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer

from toolhub.errors import ToolhubError
from toolhub.extensions import BuiltinContext
from toolhub_servers.scrape.conversion import NOT_INSTALLED
from toolhub_servers.scrape.model import DatasetRefused, PageRenderer
from toolhub_servers.scrape.uris import SCHEMES, Uris, UriSettings, check_not_empty
from toolhub_servers.serving.options import missing_options_of, validated
from toolhub_servers.serving.program import run
from toolhub_servers.serving.server import ServerContext, make_server, read_only_tool

NO_URI = "Error: URI parameter is required and cannot be empty."
BAD_SCHEME = f"Error: Invalid URI scheme. Supported schemes are: {', '.join(SCHEMES)}"

OPTIONS = UriSettings
missing_options = missing_options_of(UriSettings)


def create_server(
    *, context: BuiltinContext | None = None, renderer: PageRenderer | None = None, **options: Any
) -> MCPServer:
    """Return the server. Raises ValueError for an option that is unknown or wrong.

    context: what the hub gives the server. renderer: a browser for pages that need one. options: see `UriSettings`.
    """
    uris = Uris(validated(UriSettings, options), renderer)
    server_context = ServerContext(context)

    async def convert_to_markdown(uri: str) -> str:
        """Convert a page, a document or a file to Markdown text: HTML, PDF, Word, Excel, PowerPoint, e-books and more.

        Args:
            uri: What to convert: an http: or https: URL, a file: URI of a local file, or a data: URI. Files in a
                sandbox cannot be read.

        Returns:
            The text as Markdown, or a sentence that starts with "Error:".
        """
        if not uri or not uri.strip():
            return NO_URI
        if not uri.strip().lower().startswith(SCHEMES):
            return BAD_SCHEME
        try:
            return check_not_empty(await uris.read(server_context.resources, uri))
        except DatasetRefused as exc:
            return str(exc)
        except (ToolhubError, OSError, ValueError) as exc:
            if NOT_INSTALLED in str(exc):
                return f"Error: Failed to connect to markitdown-mcp server: {exc}"
            return f"Error: Tool execution failed: {exc}"

    tools = [read_only_tool(convert_to_markdown, is_titled=False)]
    prefetches = {"convert_to_markdown": uris.prefetch(server_context)}
    return make_server("toolhub-reading", tools=tools, prefetches=prefetches, lifespan=server_context.lifespan)


def main() -> None:
    run("reading", "Makes Markdown of pages, documents and files.", create_server, UriSettings)
