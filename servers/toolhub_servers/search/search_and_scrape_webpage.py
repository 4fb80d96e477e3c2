"""An MCP server that searches the web with Google and Sogou: MiroFlow's `search_and_scrape_webpage`.

Tools, parameters, result objects and error objects are those that the models know. What differs, on purpose:

- Google is Serper, or the `backends` in their order: SearXNG, Exa, Sogou or a folder of documents. If one fails, the
  next one is asked. All of them answer in Serper's form.
- A search has one deadline for all tries (`timeout_s`, `web.total_s`) instead of 5 seconds for each. Only errors that
  may pass are tried again (no connection, 408, 429, 5xx), after the pause that the service asks for. A refused key is
  reported at once.
- The same query of several tasks is sent and paid for once (`cache_s`). Connections are kept.
- An error says which service failed and why. As in the original it has no `organic`; no hits are an empty list.
- A missing key is found when the server is created, with the names of option and variable. Only Sogou's keys may be
  missing: its tool then says so. With `backends: []` that holds for Google too.
- Queries are sent unchanged, quotes included. `sogou_search` also takes `Query` and `Cnt`, which models know from
  another server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool

from toolhub.extensions import BuiltinContext
from toolhub_servers.scrape.texts import decode_urls
from toolhub_servers.search.backends.sogou import COUNTS, SogouSettings
from toolhub_servers.search.chain import Search
from toolhub_servers.search.model import Query, Results, SearchFailed, ServiceRefused
from toolhub_servers.search.registry import add_search_arguments, read_settings, search_options, settings_model
from toolhub_servers.search.tools import (
    EMPTY_QUERY,
    NO_SERPER_KEY,
    NO_TENCENT_KEYS,
    LowerCount,
    LowerQuery,
    clean_query,
    failure,
    make_query,
    search_tool,
    to_json,
    without_dataset_hits,
)
from toolhub_servers.serving.options import MissingOption
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import MaybeFlag, MaybeNumber, MaybeText, make_server

# Results of another agent's searches, which are not sources.
UNWANTED = "unifuncs"

OPTIONS = settings_model()
# With these options the server can be created without a key, to list its tools.
LISTING_OPTIONS: dict[str, Any] = {"backends": []}


def create_server(*, context: BuiltinContext | None = None, **options: Any) -> MCPServer:
    """Return the server. Raises ValueError for an option that is unknown, wrong or missing.

    context: what the hub gives the server. options: see `SearchSettings`.
    """
    search = Search(context, read_settings(options))
    tools = WebpageTools(search)
    return make_server("toolhub-search-and-scrape-webpage", tools=tools.mcp_tools(), lifespan=search.lifespan)


def missing_options(**options: Any) -> list[MissingOption]:
    """The keys that Sogou lacks. (Without Google's key the server does not start.)"""
    sogou: SogouSettings = read_settings(options).section("sogou")
    return sogou.missing_options(is_needed=False)


class WebpageTools:
    """The two tools. Every expected failure is an object, as models know it, and not an error."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def mcp_tools(self) -> list[Tool]:
        return [search_tool(tool, is_titled=True) for tool in (self.google_search, self.sogou_search)]

    async def google_search(
        self,
        q: str,
        gl: MaybeText = "us",
        hl: MaybeText = "en",
        location: MaybeText = None,
        num: MaybeNumber = None,
        tbs: MaybeText = None,
        page: MaybeNumber = None,
        autocorrect: MaybeFlag = None,
    ) -> str:
        """Search the web with Google and get the pages found, each with title, link and snippet.

        Args:
            q: The query.
            gl: The country to search in, as a code of two letters ('us', 'cn', 'de'). Default is 'us'.
            hl: The language of the results, as a code of two letters ('en', 'zh', 'es'). Default is 'en'.
            location: The place to search from, such as 'SoHo, New York, United States'.
            num: How many results to return. Default is 10.
            tbs: Only pages of the past hour ('qdr:h'), day ('qdr:d'), week ('qdr:w'), month ('qdr:m') or year
                ('qdr:y').
            page: Which page of the results to return. Default is 1.
            autocorrect: Whether misspelt words are corrected.

        Returns:
            A JSON object with `organic`, the results, and `searchParameters`, the query as it was understood.
        """
        query = make_query(q, gl, hl, location, num, tbs, page, autocorrect)
        if not self._search.is_available:
            return failure(NO_SERPER_KEY)
        if not query.q:
            return failure(EMPTY_QUERY)
        try:
            results = await self._find(query)
        except SearchFailed as exc:
            return failure(f"Unexpected error: {exc}")
        answer = {"organic": results.organic(), "searchParameters": dict(results.parameters)}
        return to_json(decode_urls(answer))

    async def sogou_search(self, q: LowerQuery, num: LowerCount = 10) -> str:
        """Search the web with Sogou, which is good at Chinese queries, and get the pages found.

        Args:
            q: The query; the more exactly it says what is looked for, the better.
            num: How many results to return: 10, 20, 30, 40 or 50. Default is 10.

        Returns:
            A JSON object with `Query`, the query, and `Pages`, the results, each with title, url, passage, date and
            site.
        """
        query = clean_query(q)
        if self._search.settings.section("sogou").unset:
            return failure(NO_TENCENT_KEYS)
        if not query:
            return failure(EMPTY_QUERY)
        if num not in COUNTS:
            return failure(f"Invalid num value: {num}. Must be one of {', '.join(map(str, COUNTS))}")
        try:
            return to_json(await self._search.sogou_pages(query, num))
        except ServiceRefused as exc:
            return failure(f"Tencent Cloud API error: {exc}")
        except SearchFailed as exc:
            return failure(f"Unexpected error: {exc}")

    async def _find(self, query: Query) -> Results:
        """Return the results that may be shown. If there are none, search again without quotes."""
        results = without_dataset_hits(await self._search.find(query), UNWANTED)
        unquoted = query.q.replace('"', "").strip()
        if results.hits or unquoted in ("", query.q):
            return results
        return without_dataset_hits(await self._search.find(replace(query, q=unquoted)), UNWANTED)


def create_from_options(backends: Sequence[str], folder: str | None) -> MCPServer:
    """`create_server` with the options from the environment. Raises ValueError."""
    return create_server(**search_options(backends, folder))


def main() -> None:
    parser = make_parser("search_and_scrape_webpage", "Searches the web by Google and by Sogou.")
    add_search_arguments(parser)
    serve(parser, create_from_options)
