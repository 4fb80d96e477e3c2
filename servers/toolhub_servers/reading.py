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
from toolhub_servers._command import command, serve
from toolhub_servers._hosted import Lobby
from toolhub_servers._lacks import Lack
from toolhub_servers._tools import make_server, read_only_tool
from toolhub_servers.scrape import DatasetRefused, Renderer
from toolhub_servers.scrape.command import add_local_dirs, add_page_options
from toolhub_servers.scrape.conversion import NOT_INSTALLED
from toolhub_servers.scrape.settings import validated
from toolhub_servers.scrape.uris import SCHEMES, Uris, UriSettings, check_not_empty

NO_URI = "Error: URI parameter is required and cannot be empty."
BAD_SCHEME = f"Error: Invalid URI scheme. Supported schemes are: {', '.join(SCHEMES)}"


def create_server(*, host: BuiltinContext | None = None, renderer: Renderer | None = None, **options: Any) -> MCPServer:
    """Return the server. Raises ValueError for an option that is unknown or makes no sense.

    host: what the hub lends. renderer: a browser for pages that need one. options: see `UriSettings`.
    """
    uris = Uris(validated(UriSettings, options), renderer)
    lobby = Lobby(host)

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
            return check_not_empty(await uris.read(lobby.resources, uri))
        except DatasetRefused as exc:
            return str(exc)
        except (ToolhubError, OSError, ValueError) as exc:
            if NOT_INSTALLED in str(exc):
                return f"Error: Failed to connect to markitdown-mcp server: {exc}"
            return f"Error: Tool execution failed: {exc}"

    tools = [read_only_tool(convert_to_markdown, is_titled=False)]
    return make_server("toolhub-reading", tools=tools, lifespan=lobby.lifespan)


def lacks(**options: Any) -> list[Lack]:
    """What pages are read without, or cannot be read at all without. Raises ValueError."""
    return validated(UriSettings, options).lacks()


def create_from_options(readers: Sequence[str], allow_private: Sequence[str], local_dirs: Sequence[str]) -> MCPServer:
    """`create_server` as a program has it; the key of Jina Reader is in the environment. Raises ValueError."""
    return create_server(**program_options(readers, allow_private, local_dirs))


def program_options(readers: Sequence[str], allow_private: Sequence[str], local_dirs: Sequence[str]) -> dict[str, Any]:
    chosen = {"readers": readers} if readers else {}
    named = {name: os.environ.get(name.upper(), "") for name in ("jina_api_key", "jina_base_url")}
    return {**named, **chosen, "local_dirs": local_dirs, "web": {"allow_private": allow_private}}


def main() -> None:
    parser = command("reading", "Makes Markdown of pages, documents and files.")
    add_page_options(parser)
    add_local_dirs(parser)
    serve(parser, create_from_options)


if __name__ == "__main__":
    main()
