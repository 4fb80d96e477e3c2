"""What the search servers share: parameters, answers, and the tool `scrape_website`."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import AliasChoices, Field

from toolhub_servers.scrape.model import PageRenderer
from toolhub_servers.scrape.pages import open_pages, page_prefetch
from toolhub_servers.scrape.settings import PageSettings
from toolhub_servers.scrape.texts import is_dataset_url
from toolhub_servers.scrape.website import scrape_website
from toolhub_servers.search.model import Query, Results
from toolhub_servers.serving.options import MissingOption, validated
from toolhub_servers.serving.server import Prefetch, ServerContext, read_only_tool

logger = logging.getLogger(__name__)


def either_name(name: str, other: str) -> AliasChoices:
    """A parameter `name` that may also be called `other`; the schema shows only the first."""
    return AliasChoices(name, other)


# The two servers with a sogou_search give its parameters different names, and models mix them up.
LowerQuery = Annotated[str, Field(validation_alias=either_name("q", "Query"))]
UpperQuery = Annotated[str, Field(validation_alias=either_name("Query", "q"))]
LowerCount = Annotated[int, Field(validation_alias=either_name("num", "Cnt"))]
UpperCount = Annotated[int, Field(validation_alias=either_name("Cnt", "num"))]


def make_query(
    q: str,
    gl: str | None,
    hl: str | None,
    location: str | None,
    num: int | None,
    tbs: str | None,
    page: int | None,
    autocorrect: bool | None,
) -> Query:
    """Return the query for the arguments of a `google_search`; null means the default."""
    return Query(clean_query(q), gl or "us", hl or "en", location, 10 if num is None else num, tbs, page, autocorrect)


def search_tool(function: Callable[..., Awaitable[str]], *, is_titled: bool) -> Tool:
    """A tool that only reads; see `make_tool`."""
    return read_only_tool(_explained(function), is_titled=is_titled)


def _explained(function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    """Log why a tool failed, and put the reason into its error; the SDK's error only says that it failed."""

    @functools.wraps(function)
    async def call(*args: Any, **arguments: Any) -> str:
        try:
            return await function(*args, **arguments)
        except ToolError:
            raise
        except Exception as exc:
            logger.exception("tool %s failed", function.__name__)
            raise ToolError(f"{type(exc).__name__}: {exc}") from exc

    return call


EMPTY_QUERY = "Search query 'q' is required and cannot be empty"
NO_SERPER_KEY = "SERPER_API_KEY environment variable not set"
NO_TENCENT_KEYS = "TENCENTCLOUD_SECRET_ID or TENCENTCLOUD_SECRET_KEY environment variable not set"


def to_json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def failure(error: str) -> str:
    """Return the object for a failed search. It has no `organic`, because it is unknown what there is."""
    return to_json({"success": False, "error": error, "results": []})


def clean_query(text: str) -> str:
    """Return a query that can be sent. Models put line breaks around it, and half characters into it."""
    return text.strip().encode("utf-8", "replace").decode()


def without_dataset_hits(results: Results, *unwanted: str) -> Results:
    """Remove hits that contain benchmark answers. unwanted: parts of further links to remove."""
    hits = [
        hit for hit in results.hits if not is_dataset_url(hit.link) and not any(part in hit.link for part in unwanted)
    ]
    return replace(results, hits=tuple(hits))


def website_missing_options(pages: Mapping[str, Any] | None) -> list[MissingOption]:
    """The keys that reading pages lacks. pages: see `PageSettings`. Raises ValueError."""
    return validated(PageSettings, pages or {}, "pages").missing_options("scrape_website", prefix="pages.")


class Website:
    """pages: see `PageSettings`. Raises ValueError."""

    def __init__(
        self, server_context: ServerContext, pages: Mapping[str, Any] | None, renderer: PageRenderer | None
    ) -> None:
        self._context = server_context
        self._settings = validated(PageSettings, pages or {}, "pages")
        self._renderer = renderer

    def mcp_tools(self) -> Tool:
        return search_tool(self.scrape_website, is_titled=False)

    def prefetches(self) -> dict[str, Prefetch]:
        return {"scrape_website": page_prefetch(self._context, self._settings, self._renderer)}

    async def scrape_website(self, url: str) -> str:
        """Get the text of a web page. Works for YouTube videos, too, as far as they have text: title, description and
        subtitles, perhaps not complete. Not for search engines.

        Args:
            url: The URL of the page.

        Returns:
            The text of the page.
        """
        pages = await open_pages(self._context.resources, self._settings, self._renderer)
        return await scrape_website(pages, url)
