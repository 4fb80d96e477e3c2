"""An MCP server that searches the web with Google and reads pages: MiroFlow's `tool-google-search`.

Tools, parameters, results and sentences are those that the models know. What differs, on purpose:

- No process is started for a search, and each search has one deadline for all tries (`timeout_s`, `web.total_s`). The
  text still says "after 3 attempts"; only errors that may pass are tried again.
- Google is Serper, or the `backends` in their order: if one fails, the next one is asked. The same query of several
  tasks is sent and paid for once (`cache_s`), and so is a page that they read.
- An error says which service failed and why, with its status.
- A search that finds nothing says so, and does not give an object without results.
- A missing key is found when the server is created, with the names of option and variable. With `backends: []` the tool
  says that there is no key.
- Parts of the results can be removed by options: `remove_snippets`, `remove_knowledge_graph`, `remove_answer_box`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool

from toolhub.extensions import BuiltinContext
from toolhub_servers.scrape.model import PageRenderer
from toolhub_servers.scrape.settings import PageSettings
from toolhub_servers.scrape.texts import decode_urls
from toolhub_servers.search.chain import Search
from toolhub_servers.search.model import SearchFailed
from toolhub_servers.search.registry import (
    ENVIRONMENT,
    add_search_arguments,
    is_set,
    read_settings,
    search_options,
    settings_model,
)
from toolhub_servers.search.tools import (
    EMPTY_QUERY,
    Website,
    failure,
    make_query,
    search_tool,
    to_json,
    website_missing_options,
    without_dataset_hits,
)
from toolhub_servers.serving.options import MissingOption
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import MaybeNumber, MaybeText, make_server

NO_KEY = "[ERROR]: SERPER_API_KEY is not set, google_search tool is not available."
EMPTY = "Empty result from google_search tool, please try again."
ABOUT_THE_SEARCH = frozenset({"searchParameters", "credits"})

OPTIONS = settings_model()
# With these options the server can be created without a key, to list its tools.
LISTING_OPTIONS: dict[str, Any] = {"backends": []}


def create_server(
    *,
    context: BuiltinContext | None = None,
    pages: Mapping[str, Any] | None = None,
    renderer: PageRenderer | None = None,
    remove_snippets: bool = False,
    remove_knowledge_graph: bool = False,
    remove_answer_box: bool = False,
    **options: Any,
) -> MCPServer:
    """Return the server. Raises ValueError for an option that is unknown, wrong or missing.

    context: what the hub gives the server. pages: how pages are read, see `PageSettings`. renderer: a browser for pages
    that need one. remove_...: parts of results that models do not get. options: see `SearchSettings`.
    """
    search = Search(context, read_settings(options))
    switches = {"knowledgeGraph": remove_knowledge_graph, "answerBox": remove_answer_box}
    removed = frozenset(block for block, is_removed in switches.items() if is_removed)
    google = GoogleTool(search, removed=removed, has_snippets=not remove_snippets)
    website = Website(search.context, pages, renderer)
    tools = [google.mcp_tools(), website.mcp_tools()]
    return make_server("toolhub-google-search", tools=tools, prefetches=website.prefetches(), lifespan=search.lifespan)


def missing_options(*, pages: Mapping[str, Any] | None = None, **_options: Any) -> list[MissingOption]:
    """The keys that reading pages lacks. (Without a key for searching the server does not start.) Raises ValueError."""
    return website_missing_options(pages)


class GoogleTool:
    """removed: the blocks that are left out of an answer."""

    def __init__(self, search: Search, *, removed: frozenset[str], has_snippets: bool) -> None:
        self._search = search
        self._removed = removed
        self._has_snippets = has_snippets

    def mcp_tools(self) -> Tool:
        return search_tool(self.google_search, is_titled=False)

    async def google_search(
        self,
        q: str,
        gl: MaybeText = "us",
        hl: MaybeText = "en",
        location: MaybeText = None,
        num: MaybeNumber = 10,
        tbs: MaybeText = None,
        page: MaybeNumber = 1,
    ) -> str:
        """Search the web with Google. Besides the pages found, the answer may have related questions and searches, a
        direct answer and a knowledge graph.

        Args:
            q: The query.
            gl: The country to search in ('us' for the United States, 'cn' for China, 'uk' for the United Kingdom);
                what is near it comes first. Default is 'us'.
            hl: The language of the search page ('en' for English, 'zh' for Chinese, 'es' for Spanish), which snippets
                prefer, too. Default is 'en'.
            location: The city to search from, such as 'SoHo, New York, United States' or 'California, United States'.
            num: How many results to return. Default is 10.
            tbs: Only pages of the past hour ('qdr:h'), day ('qdr:d'), week ('qdr:w'), month ('qdr:m') or year
                ('qdr:y').
            page: Which page of the results to return. Default is 1.

        Returns:
            The results as a JSON object.
        """
        if not self._search.is_available:
            return NO_KEY
        query = make_query(q, gl, hl, location, num, tbs, 1 if page is None else page, autocorrect=False)
        if not query.q:
            return failure(EMPTY_QUERY)
        try:
            results = without_dataset_hits(await self._search.find(query))
        except SearchFailed as exc:
            return _failed(str(exc))
        answer = self._shown(results.as_serper())
        if not any(value for name, value in answer.items() if name not in ABOUT_THE_SEARCH):
            return _failed(EMPTY)
        return to_json(decode_urls(answer), indent=2)

    def _shown(self, answer: dict[str, Any]) -> dict[str, Any]:
        shown = {name: value for name, value in answer.items() if name not in self._removed}
        if not self._has_snippets:
            for block in ("organic", "peopleAlsoAsk"):
                if isinstance(shown.get(block), list):
                    shown[block] = [_without_snippet(item) for item in shown[block]]
        return shown


def _without_snippet(item: Any) -> Any:
    if not isinstance(item, Mapping):
        return item
    return {name: value for name, value in item.items() if name != "snippet"}


def _failed(reason: str) -> str:
    return f"[ERROR]: google_search tool execution failed after 3 attempts: {reason}"


def create_from_options(backends: Sequence[str], folder: str | None) -> MCPServer:
    """`create_server` with the options from the environment. Raises ValueError."""
    return create_server(
        **search_options(backends, folder),
        pages=PageSettings.from_environment(),
        remove_snippets=is_set("REMOVE_SNIPPETS"),
        remove_knowledge_graph=is_set("REMOVE_KNOWLEDGE_GRAPH"),
        remove_answer_box=is_set("REMOVE_ANSWER_BOX"),
    )


def main() -> None:
    parser = make_parser("google_search", "Searches the web by Google and reads pages.")
    add_search_arguments(parser)
    parser.epilog = (
        f"{ENVIRONMENT} JINA_API_KEY, JINA_BASE_URL. "
        "REMOVE_SNIPPETS, REMOVE_KNOWLEDGE_GRAPH, REMOVE_ANSWER_BOX: true, 1 or yes."
    )
    serve(parser, create_from_options)
