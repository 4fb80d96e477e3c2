"""An MCP server that searches the web with Sogou and reads pages: MiroFlow's `tool-sogou-search`.

Tools, parameters, results and sentences are those that the models know. What differs, on purpose:

- The query is sent unchanged, quotes included. A search blocks no other task and has one deadline for all tries
  (`timeout_s`). It is repeated only if the service says that it is busy. The same query of several tasks is sent once
  (`cache_s`).
- An error ends with the service's own words, not with "Unexpected error occurred.".
- A count that Sogou does not support is refused before anything is sent, with the list of those that it supports.
- The tool reports missing keys. One key without the other is found when the server is created.
- `sogou_search` also takes `q` and `num`, which models know from another server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool

from toolhub.extensions import BuiltinContext
from toolhub_servers.scrape.model import PageRenderer
from toolhub_servers.scrape.settings import PageSettings
from toolhub_servers.search.backends.sogou import COUNTS, SogouSettings
from toolhub_servers.search.chain import Search
from toolhub_servers.search.model import SearchFailed
from toolhub_servers.search.registry import read_settings, settings_model
from toolhub_servers.search.tools import (
    UpperCount,
    UpperQuery,
    Website,
    clean_query,
    search_tool,
    to_json,
    website_missing_options,
)
from toolhub_servers.serving.options import MissingOption
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import make_server

NO_KEYS = "[ERROR]: TENCENTCLOUD_SECRET_ID or TENCENTCLOUD_SECRET_KEY is not set, sogou_search tool is not available."

OPTIONS = settings_model()


def create_server(
    *,
    context: BuiltinContext | None = None,
    pages: Mapping[str, Any] | None = None,
    renderer: PageRenderer | None = None,
    **options: Any,
) -> MCPServer:
    """Return the server; the parameters are those of `google_search.create_server`. Raises ValueError.

    options: see `SearchSettings`; only `sogou`, `web`, `timeout_s` and `cache_s` matter here.
    """
    search = Search(context, read_settings({**options, "backends": []}))
    website = Website(search.context, pages, renderer)
    tools = [SogouTool(search).mcp_tools(), website.mcp_tools()]
    return make_server("toolhub-sogou-search", tools=tools, prefetches=website.prefetches(), lifespan=search.lifespan)


def missing_options(*, pages: Mapping[str, Any] | None = None, **options: Any) -> list[MissingOption]:
    """The keys that Sogou and Jina Reader lack. Raises ValueError."""
    sogou: SogouSettings = read_settings({**options, "backends": []}).section("sogou")
    return [*sogou.missing_options(is_needed=True), *website_missing_options(pages)]


class SogouTool:
    def __init__(self, search: Search) -> None:
        self._search = search

    def mcp_tools(self) -> Tool:
        return search_tool(self.sogou_search, is_titled=False)

    async def sogou_search(self, Query: UpperQuery, Cnt: UpperCount = 10) -> str:
        """Search the web with Sogou, which is better than others at Chinese queries.

        Args:
            Query: The query; the more exactly it says what is looked for, the better ("2024 World Cup final results").
            Cnt: How many results to return: 10, 20, 30, 40 or 50. Default is 10.

        Returns:
            The results as a JSON object: `Query`, the query, and `Pages`, each with title, url, passage, date and site.
        """
        query = clean_query(Query)
        if self._search.settings.section("sogou").unset:
            return NO_KEYS
        if not query:
            return _failed("Search query 'Query' is required and cannot be empty")
        if Cnt not in COUNTS:
            return _failed(f"Invalid Cnt value: {Cnt}. Must be one of {', '.join(map(str, COUNTS))}")
        try:
            return to_json(await self._search.sogou_pages(query, Cnt))
        except SearchFailed as exc:
            return _failed(str(exc))


def _failed(reason: str) -> str:
    return f"[ERROR]: sogou_search tool execution failed after 3 attempts: {reason}"


def create_from_environment() -> MCPServer:
    """`create_server` with the options from the environment. Raises ValueError."""
    return create_server(sogou=SogouSettings.from_environment(), pages=PageSettings.from_environment())


def main() -> None:
    parser = make_parser("sogou_search", "Searches the web by Sogou and reads pages.")
    parser.epilog = "Environment: TENCENTCLOUD_SECRET_ID, TENCENTCLOUD_SECRET_KEY, JINA_API_KEY, JINA_BASE_URL."
    serve(parser, create_from_environment)
