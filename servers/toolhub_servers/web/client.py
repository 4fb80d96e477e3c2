"""The HTTP client of a backend: one pool for the whole hub."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from toolhub.commons import Commons
from toolhub_servers.web.errors import BadStatus, Unreachable, WebTimeout
from toolhub_servers.web.model import Reply
from toolhub_servers.web.settings import WebSettings


class Web:
    """Get one from `open_web()`; any number of tasks may use it at once."""

    def __init__(self, settings: WebSettings, client: httpx2.AsyncClient) -> None:
        self.settings = settings
        self._client = client

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        timeout: float | None = None,
        max_bytes: int | None = None,
        is_safe: bool | None = None,
        raise_for_status: bool = True,
    ) -> Reply:
        """Send a request and return the whole answer, at most `max_bytes` of its body.

        timeout: seconds for everything; default is the settings'. is_safe: whether it may be sent again after it may
        have been acted on; default: GET and HEAD. Raises Forbidden, Unreachable, WebTimeout, BadStatus.
        """
        try:
            answer = await self._client.request(method, url, headers=dict(headers or {}), json=json, content=content)
        except httpx2.TimeoutException as exc:
            raise WebTimeout(str(exc)) from exc
        except httpx2.TransportError as exc:
            raise Unreachable(str(exc)) from exc
        if raise_for_status and answer.status_code >= 400:
            raise BadStatus(f"{url} answered {answer.status_code}", status=answer.status_code, text=answer.text[:500])
        return Reply(answer.status_code, str(answer.url), dict(answer.headers), answer.content)

    async def get(self, url: str, **options: Any) -> Reply:
        """`request("GET", ...)`."""
        return await self.request("GET", url, **options)


async def open_web(commons: Commons, name: str, settings: WebSettings | None = None) -> Web:
    """Return the hub's client for a backend (`serper`, `jina`, `pages`, ...), opening it if nobody has."""
    chosen = settings or WebSettings()
    print_ = hashlib.sha256(chosen.model_dump_json().encode()).hexdigest()[:12]
    return await commons.share(f"http {name} {print_}", lambda: _open(chosen))


@asynccontextmanager
async def _open(settings: WebSettings) -> AsyncIterator[Web]:
    async with httpx2.AsyncClient(follow_redirects=True, timeout=settings.total_s) as client:
        yield Web(settings, client)
