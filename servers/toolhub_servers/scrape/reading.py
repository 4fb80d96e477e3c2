"""An MCP server that makes Markdown of pages, documents and files: MiroFlow's `tool-reading`.

Its tool and its sentences are those that the models know. What differs, on purpose: no process is started for a call,
local files are read only below `local_dirs`, private addresses and datasets are not read at all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mcp.server import MCPServer

from toolhub.errors import ToolhubError
from toolhub.extensions import BuiltinContext
from toolhub_servers.scrape.conversion import NOT_INSTALLED
from toolhub_servers.scrape.model import DatasetRefused, PageRenderer
from toolhub_servers.scrape.program import add_local_dirs_argument, add_page_arguments
from toolhub_servers.scrape.uris import SCHEMES, Uris, UriSettings, check_not_empty
from toolhub_servers.serving.context import ServerContext
from toolhub_servers.serving.options import MissingOption, validated
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.tools import make_server, read_only_tool

NO_URI = "Error: URI parameter is required and cannot be empty."
BAD_SCHEME = f"Error: Invalid URI scheme. Supported schemes are: {', '.join(SCHEMES)}"

OPTIONS = UriSettings


def create_server(
    *, context: BuiltinContext | None = None, renderer: PageRenderer | None = None, **options: Any
) -> MCPServer:
    """Return the server. Raises ValueError for an option that is unknown or makes no sense.

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
    return make_server("toolhub-reading", tools=tools, lifespan=server_context.lifespan)


def missing_options(**options: Any) -> list[MissingOption]:
    """What pages are read without, or cannot be read at all without. Raises ValueError."""
    return validated(UriSettings, options).missing_options()


def create_from_options(readers: Sequence[str], allow_private: Sequence[str], local_dirs: Sequence[str]) -> MCPServer:
    """`create_server` as a program has it; the key of Jina Reader is in the environment. Raises ValueError."""
    return create_server(**program_options(readers, allow_private, local_dirs))


def program_options(readers: Sequence[str], allow_private: Sequence[str], local_dirs: Sequence[str]) -> dict[str, Any]:
    chosen = {"readers": readers} if readers else {}
    named = {name: os.environ.get(name.upper(), "") for name in ("jina_api_key", "jina_base_url")}
    return {**named, **chosen, "local_dirs": local_dirs, "web": {"allow_private": allow_private}}


def main() -> None:
    parser = make_parser("reading", "Makes Markdown of pages, documents and files.")
    add_page_arguments(parser)
    add_local_dirs_argument(parser)
    serve(parser, create_from_options)
