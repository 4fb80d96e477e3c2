"""Exa, a search by meaning (https://exa.ai/docs)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pydantic import Field

from toolhub.shared_resources import SharedResources
from toolhub_servers.search.backend import Backend, BackendSettings, BaseUrl, Service, SharedSettings, open_service
from toolhub_servers.search.model import Hit, Query, Results, utc_now

HINTS = {
    401: "check the option exa.api_key",
    402: "the account has no credits",
    403: "check the option exa.api_key",
    429: "too many requests for the plan of this key",
}
MAX_RESULTS = 100
# Country codes of Google that differ from ISO 3166.
ISO_CODES = {"uk": "GB"}
# About as long as the snippets of other engines.
SNIPPET_CHARACTERS = 500


class ExaSettings(BackendSettings):
    VARIABLES = {"api_key": "EXA_API_KEY", "base_url": "EXA_BASE_URL"}
    REQUIRED = ("api_key",)

    api_key: str | None = Field(default=None, repr=False)
    base_url: BaseUrl = "https://api.exa.ai"
    type: str = "auto"


class Exa:
    """Exa has no pages. For a later page, the hits of the earlier ones are requested too."""

    def __init__(self, service: Service, api_key: str, kind: str, *, now: Callable[[], datetime] = utc_now) -> None:
        self._service = service
        self._headers = {"x-api-key": api_key}
        self._kind = kind
        self._now = now

    async def search(self, query: Query) -> Results:
        if query.skipped >= MAX_RESULTS:
            return Results("exa", (), query.parameters("exa"))
        answer = await self._service.ask("POST", "/search", headers=self._headers, json=self._payload(query))
        found = [item for item in answer.get("results") or [] if isinstance(item, dict) and item.get("url")]
        page = found[query.skipped : query.skipped + query.count]
        hits = tuple(_hit(item, position) for position, item in enumerate(page, start=1))
        return Results("exa", hits, query.parameters("exa"))

    def _payload(self, query: Query) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "query": query.q,
            "type": self._kind,
            "numResults": min(query.skipped + query.count, MAX_RESULTS),
            "contents": {"highlights": True},
        }
        if len(query.gl) == len("us") and query.gl.isalpha():
            payload["userLocation"] = ISO_CODES.get(query.gl.lower(), query.gl.upper())
        if since := query.since(self._now()):
            payload["startPublishedDate"] = since.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return payload


async def open_exa(own: ExaSettings, shared: SharedSettings, resources: SharedResources) -> Exa:
    return Exa(await open_service("exa", own.base_url, resources, shared.web, HINTS), own.api_key or "", own.type)


def _hit(item: dict[str, Any], position: int) -> Hit:
    highlights = item.get("highlights")
    parts = [str(part) for part in highlights] if isinstance(highlights, list) else []
    text = " ... ".join(parts) or str(item.get("summary") or item.get("text") or "")
    snippet = " ".join(text.split())[:SNIPPET_CHARACTERS]
    date = str(item.get("publishedDate") or "")[: len("2026-01-31")] or None
    return Hit(str(item.get("title") or ""), str(item["url"]), snippet, date, position)


EXA = Backend(
    "exa",
    ExaSettings,
    open_exa,
)
