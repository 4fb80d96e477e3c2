"""A SearXNG instance of one's own (https://docs.searxng.org/dev/search_api.html)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from toolhub.commons import Commons
from toolhub_servers.search.errors import SearchFailed
from toolhub_servers.search.model import Hit, Query, Results
from toolhub_servers.search.service import Service, open_service
from toolhub_servers.search.settings import SearchSettings, SearxngSettings

HINTS = {
    403: "the instance gives no JSON: add 'json' to search.formats in its settings.yml, or its limiter refuses us",
    429: "the instance's limiter refuses us: add this host to its pass list",
}
# There is nothing shorter than a day.
RANGES = {"h": "day", "d": "day", "w": "week", "m": "month", "y": "year"}


class Searxng:
    """Has pages of some 20 hits, of which at most `num` are given."""

    def __init__(self, service: Service, settings: SearxngSettings) -> None:
        self._service = service
        self._settings = settings

    async def search(self, query: Query) -> Results:
        asked = urlencode(parameters_of(query, self._settings))
        answer = await self._service.ask("GET", f"/search?{asked}", headers={"Accept": "application/json"})
        found = [item for item in answer.get("results") or [] if isinstance(item, dict) and item.get("url")]
        if not found and (silent := answer.get("unresponsive_engines")):
            # Nothing was found because nobody was asked: that is a failure, not an empty result.
            raise SearchFailed(f"searxng got no answer from its engines: {_told(silent)}")
        hits = tuple(_hit(item, position) for position, item in enumerate(found[: query.count], start=1))
        return Results("searxng", hits, query.parameters("searxng"))


async def open_searxng(settings: SearchSettings, commons: Commons) -> Searxng:
    own = settings.searxng
    return Searxng(await open_service("searxng", own.base_url or "", commons, settings.web, HINTS), own)


def parameters_of(query: Query, settings: SearxngSettings) -> dict[str, str]:
    asked = {"q": query.q, "format": "json", "language": query.hl, "pageno": str(max(query.page or 1, 1))}
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
    """`[["google", "timeout"], ...]` as `google (timeout), ...`."""
    if not isinstance(silent, list):
        return str(silent)
    pairs = [engine if isinstance(engine, list) else [engine] for engine in silent]
    return ", ".join(f"{pair[0]} ({pair[1]})" if len(pair) > 1 else f"{pair[0]}" for pair in pairs if pair)
