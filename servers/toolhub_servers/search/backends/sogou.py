"""Sogou by Tencent Cloud's web search service (WSA, action SearchPro)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import anyio
from pydantic import Field

from toolhub.config.section import Pause
from toolhub.overload import OverloadSignal
from toolhub.shared_resources import SharedResources
from toolhub_servers.search.backend import Backend, BackendSettings, BaseUrl, Service, SharedSettings, open_service
from toolhub_servers.search.backends.tencent_signing import Credentials, signed_headers
from toolhub_servers.search.model import Hit, Query, Results, SearchFailed, ServiceRefused
from toolhub_servers.serving.options import MissingOption

ACTION = "SearchPro"
VERSION = "2025-05-08"
COUNTS = (10, 20, 30, 40, 50)
TRIES = 3
# Errors come with status 200, so the HTTP client does not see them. Only these may pass.
BUSY = ("RequestLimitExceeded", "InternalError", "ResourceUnavailable")
FIELDS = ("title", "url", "passage", "date", "site")


class SogouSettings(BackendSettings):
    """Tencent Cloud's web search (WSA)."""

    VARIABLES = {"secret_id": "TENCENTCLOUD_SECRET_ID", "secret_key": "TENCENTCLOUD_SECRET_KEY"}
    REQUIRED = ("secret_id", "secret_key")

    secret_id: str | None = Field(default=None, repr=False)
    secret_key: str | None = Field(default=None, repr=False)
    base_url: BaseUrl = "https://wsa.tencentcloudapi.com"
    pause_s: Pause = 1
    """The pause after the service said that it was busy; doubled each time."""

    def missing_options(self, *, is_needed: bool) -> list[MissingOption]:
        """The keys that are missing. is_needed: whether the server has no use without the tool `sogou_search`."""
        loss = f"every call of sogou_search fails{'' if is_needed else ', so deny the tool if it is not needed'}"
        return [
            MissingOption(f"sogou.{option}", self.VARIABLES[option], loss, is_needed, "sogou_search")
            for option in self.unset
        ]


class Sogou:
    """now: seconds since 1970."""

    def __init__(self, service: Service, settings: SogouSettings, *, now: Callable[[], float] = time.time) -> None:
        self._service = service
        self._keys = Credentials(settings.secret_id or "", settings.secret_key or "")
        self._pause_s = settings.pause_s
        self._now = now

    async def search(self, query: Query) -> Results:
        """Search. Sogou has no pages: for a later page, the hits of the earlier ones are requested too."""
        if query.skipped >= COUNTS[-1]:
            return Results("sogou", (), query.parameters("sogou"))
        end = query.skipped + query.count
        answer = await self.pages(query.q, next((count for count in COUNTS if count >= end), COUNTS[-1]))
        found = answer["Pages"][query.skipped : end]
        hits = tuple(
            Hit(page["title"], page["url"], page["passage"], page["date"] or None, position)
            for position, page in enumerate(found, start=1)
        )
        return Results("sogou", hits, query.parameters("sogou"))

    async def pages(self, query: str, count: int) -> dict[str, Any]:
        """Return the service's own answer, `{"Query": ..., "Pages": [...], ...}`. Raises SearchFailed.

        count: one of COUNTS.
        """
        body = json.dumps({"Query": query, "Mode": 0, "Cnt": count}, ensure_ascii=False).encode()
        response = await self._response(body)
        response.pop("RequestId", None)
        return {**response, "Pages": list(_decoded(response.get("Pages")))}

    async def _response(self, body: bytes) -> dict[str, Any]:
        for further in reversed(range(TRIES)):
            answer = await self._service.ask("POST", "/", headers=self._headers(body), content=body)
            response = answer.get("Response")
            if not isinstance(response, dict):
                raise self._service.invalid_answer("has no 'Response'", json.dumps(answer).encode())
            if "Error" not in response:
                return response
            code, told = _error(response)
            if not further or not code.startswith(BUSY):
                break
            await anyio.sleep(self._pause_s * 2 ** (TRIES - 1 - further))
        raise ServiceRefused(told, overload=OverloadSignal() if code.startswith(BUSY[0]) else None)

    def _headers(self, body: bytes) -> dict[str, str]:
        return signed_headers(
            self._keys,
            host=urlsplit(self._service.base_url).netloc,
            service="wsa",
            action=ACTION,
            version=VERSION,
            body=body,
            timestamp=int(self._now()),
        )


async def open_sogou(own: SogouSettings, shared: SharedSettings, resources: SharedResources) -> Sogou:
    return Sogou(await open_service("sogou", own.base_url, resources, shared.web, {}), own)


def _error(response: dict[str, Any]) -> tuple[str, str]:
    """Return the code of an error, and the text about it."""
    error = response["Error"] if isinstance(response["Error"], dict) else {"Message": response["Error"]}
    code = str(error.get("Code") or "unknown")
    return code, f"{code}: {error.get('Message')} (RequestId {response.get('RequestId')}){_hint(code)}"


def _hint(code: str) -> str:
    if code.startswith("AuthFailure.SignatureExpire"):
        return "; check the clock of this host"
    if code.startswith("AuthFailure"):
        return "; check the options sogou.secret_id and sogou.secret_key"
    return ""


def _decoded(pages: Any) -> Iterator[dict[str, str]]:
    """Yield the pages, each a JSON text in the answer. Leave out pages that cannot be read.

    Raises SearchFailed if no page can be read.
    """
    total = unread = 0
    for page in pages or []:
        total += 1
        try:
            decoded = json.loads(page) if isinstance(page, str) else page
            yield {name: str(decoded.get(name) or "") for name in FIELDS}
        except (ValueError, AttributeError):
            unread += 1
    if total and total == unread:
        raise SearchFailed(f"sogou gave {total} pages, and none of them is a JSON object")


SOGOU = Backend(
    "sogou",
    SogouSettings,
    open_sogou,
)
