"""Reading a page that shows nothing until its scripts have run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from toolhub.errors import ToolhubError
from toolhub_servers.scrape.convert import Converter
from toolhub_servers.scrape.model import Page, Renderer, Unreadable
from toolhub_servers.web import WebError


class BrowserReader:
    """The `browser` reader: HTML from a browser, made into text like any other. It sends no headers of a caller.

    find: gives the browser, each time a page is read; raises a ToolhubError where there is none.
    """

    name = "browser"

    def __init__(self, find: Callable[[], Awaitable[Renderer]], converter: Converter, *, timeout: float) -> None:
        self._find = find
        self._converter = converter
        self._timeout = timeout

    def __repr__(self) -> str:
        return "<BrowserReader>"

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Raises Unreadable without a browser and for a page that has no text even so; WebError."""
        try:
            renderer = await self._find()
            html = await renderer.render(url, timeout=self._timeout)
        except (WebError, Unreadable):
            raise
        except ToolhubError as exc:
            raise Unreadable(f"there is no browser here: {exc}") from exc
        return await self._converter.page(html.encode(errors="replace"), "text/html; charset=utf-8", url)
