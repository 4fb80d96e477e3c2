"""Reading a page ourselves: fetched by our own client, made into text in a worker process."""

from __future__ import annotations

from collections.abc import Mapping

from toolhub_servers.scrape.convert import Converter
from toolhub_servers.scrape.model import Page, Unreadable
from toolhub_servers.web import Web

NO_URL = "URL cannot be empty"
NO_CONTENT = "No content returned from URL"
ACCEPT = "text/html,application/xhtml+xml,application/pdf;q=0.9,*/*;q=0.8"


class DirectReader:
    """The `direct` reader; private addresses are out of its reach unless the settings allow them."""

    name = "direct"

    def __init__(self, web: Web, converter: Converter, *, user_agent: str = "") -> None:
        self._web = web
        self._headers = {"accept": ACCEPT, **({"user-agent": user_agent} if user_agent else {})}
        self._converter = converter

    def __repr__(self) -> str:
        return "<DirectReader>"

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Raises Unreadable for an answer without text, WebError."""
        if not url:
            raise Unreadable(NO_URL)
        reply = await self._web.get(url, headers={**self._headers, **headers})
        if not reply.body.strip():
            raise Unreadable(NO_CONTENT)
        content_type = reply.headers.get("content-type", "")
        return await self._converter.page(reply.body, content_type, reply.url, is_cut=reply.is_cut)
