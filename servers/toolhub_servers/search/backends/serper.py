"""Google by Serper (https://serper.dev)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from toolhub.shared_resources import SharedResources
from toolhub_servers.search.backend import Backend, BackendSettings, BaseUrl, Service, SharedSettings, open_service
from toolhub_servers.search.model import Hit, Query, Results

HINTS = {
    400: "the query or one of its parameters is not accepted, or the account has no credits",
    401: "check the option serper.api_key",
    403: "check the option serper.api_key",
    429: "too many requests for the plan of this key",
}


class SerperSettings(BackendSettings):
    VARIABLES = {"api_key": "SERPER_API_KEY", "base_url": "SERPER_BASE_URL"}
    REQUIRED = ("api_key",)

    api_key: str | None = Field(default=None, repr=False)
    base_url: BaseUrl = "https://google.serper.dev"


class Serper:
    def __init__(self, service: Service, api_key: str) -> None:
        self._service = service
        self._headers = {"X-API-KEY": api_key}

    async def search(self, query: Query) -> Results:
        answer = await self._service.ask("POST", "/search", headers=self._headers, json=payload_of(query))
        found = answer.get("organic") or []
        hits = tuple(_hit(item) for item in found if isinstance(item, dict))
        return Results("serper", hits, answer.get("searchParameters") or {}, answer)


async def open_serper(own: SerperSettings, shared: SharedSettings, resources: SharedResources) -> Serper:
    return Serper(await open_service("serper", own.base_url, resources, shared.web, HINTS), own.api_key or "")


def payload_of(query: Query) -> dict[str, Any]:
    """Return the request, with only the parameters that were given, as MiroFlow sends it."""
    payload: dict[str, Any] = {"q": query.q, "gl": query.gl, "hl": query.hl, "num": query.num}
    payload |= {name: value for name in ("location", "tbs") if (value := getattr(query, name))}
    return payload | {name: value for name in ("page", "autocorrect") if (value := getattr(query, name)) is not None}


def _hit(item: dict[str, Any]) -> Hit:
    def text(name: str) -> str:
        return str(item.get(name) or "")

    position = item.get("position")
    return Hit(
        title=text("title"),
        link=text("link"),
        snippet=text("snippet"),
        date=text("date") or None,
        position=position if isinstance(position, int) else 0,
        item=item,
    )


SERPER = Backend(
    "serper",
    SerperSettings,
    open_serper,
)
