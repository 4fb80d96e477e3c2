"""A SearXNG instance of the operator (https://docs.searxng.org/dev/search_api.html)."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlencode

from pydantic import Field

from toolhub.shared_resources import SharedResources
from toolhub_servers.search.backend import (
    Backend,
    BackendSettings,
    BaseUrl,
    QueryCache,
    Service,
    SharedSettings,
    open_service,
)
from toolhub_servers.search.model import Hit, Query, Results, SearchFailed

HINTS = {
    403: "the instance gives no JSON: add 'json' to search.formats in its settings.yml, or its limiter refuses us",
    429: "the instance's limiter refuses this host: add it to the limiter's pass list",
}
# There is no range shorter than a day.
RANGES = {"h": "day", "d": "day", "w": "week", "m": "month", "y": "year"}
# Of about 20 hits each. Engines have no more than some hundred hits for a query.
MAX_PAGES = 10

logger = logging.getLogger(__name__)


class SearxngSettings(BackendSettings):
    """The instance must have `json` among its `search.formats`."""

    VARIABLES = {"base_url": "SEARXNG_BASE_URL"}
    REQUIRED = ("base_url",)

    base_url: BaseUrl | None = None
    engines: list[str] = Field(default_factory=list)
    categories: list[str] = Field(default_factory=list)


class EnginesUnresponsive(SearchFailed):
    """Nothing was found, because no engine answered."""


class Searxng:
    """The backend of one instance.

    The instance's pages have about 20 hits, and later ones repeat hits of earlier ones. So all its pages are read from
    the first on and kept, and pages of `num` hits are cut out of them.
    """

    def __init__(self, service: Service, settings: SearxngSettings, cache: QueryCache) -> None:
        self._service = service
        self._settings = settings
        self._cache = cache

    async def search(self, query: Query) -> Results:
        found = await self._find(query, query.skipped + query.count)
        page = found[query.skipped : query.skipped + query.count]
        hits = tuple(_hit(item, position) for position, item in enumerate(page, start=1))
        return Results("searxng", hits, query.parameters("searxng"))

    async def _find(self, query: Query, wanted: int) -> list[dict[str, Any]]:
        """Return at least `wanted` hits, or all that there are, each address once. Raises SearchFailed."""
        found: dict[str, dict[str, Any]] = {}
        for number in range(1, MAX_PAGES + 1):
            try:
                items = await self._page(query, number)
            except SearchFailed as exc:
                is_end = isinstance(exc, EnginesUnresponsive) and number > 1
                if not is_end and len(found) <= query.skipped:
                    raise
                logger.info("searxng did not give page %d: %s", number, exc)
                break
            known = len(found)
            for item in items:
                found.setdefault(str(item["url"]), item)
            if len(found) >= wanted or len(found) == known:
                break
        return list(found.values())

    async def _page(self, query: Query, number: int) -> list[dict[str, Any]]:
        asked = urlencode(parameters_of(query, number, self._settings))
        return await self._cache.get(asked, lambda: self._ask(asked))

    async def _ask(self, asked: str) -> list[dict[str, Any]]:
        answer = await self._service.ask("GET", f"/search?{asked}", headers={"Accept": "application/json"})
        found = [item for item in answer.get("results") or [] if isinstance(item, dict) and item.get("url")]
        if not found and (silent := answer.get("unresponsive_engines")):
            raise EnginesUnresponsive(f"searxng got no answer from its engines: {_told(silent)}")
        return found


async def open_searxng(own: SearxngSettings, shared: SharedSettings, resources: SharedResources) -> Searxng:
    service = await open_service("searxng", own.base_url or "", resources, shared.web, HINTS)
    return Searxng(service, own, QueryCache("searxng", own, shared, resources))


def parameters_of(query: Query, number: int, settings: SearxngSettings) -> dict[str, str]:
    """number: of the instance's page, from 1."""
    asked = {"q": query.q, "format": "json", "language": query.hl, "pageno": str(number)}
    if query.past:
        asked["time_range"] = RANGES[query.past]
    if settings.engines:
        asked["engines"] = ",".join(settings.engines)
    if settings.categories:
        asked["categories"] = ",".join(settings.categories)
    return asked


def _hit(item: dict[str, Any], position: int) -> Hit:
    date = str(item.get("publishedDate") or "")[: len("2026-01-31")] or None
    return Hit(str(item.get("title") or ""), str(item["url"]), str(item.get("content") or ""), date, position)


def _told(silent: Any) -> str:
    """Return `[["google", "timeout"], ...]` as `google (timeout), ...`."""
    if not isinstance(silent, list):
        return str(silent)
    pairs = [engine if isinstance(engine, list) else [engine] for engine in silent]
    return ", ".join(f"{pair[0]} ({pair[1]})" if len(pair) > 1 else f"{pair[0]}" for pair in pairs if pair)


SEARXNG = Backend(
    "searxng",
    SearxngSettings,
    open_searxng,
    caches_itself=True,  # it keeps the pages of the instance, and one page answers several queries
)
