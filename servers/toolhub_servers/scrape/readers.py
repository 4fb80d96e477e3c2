"""The three readers of pages: `jina` asks Jina Reader, `direct` fetches the page itself, `browser` renders it.

`direct` and `browser` share the `Converter`, which makes text of a body in a worker process.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from toolhub.errors import ToolhubError
from toolhub_servers.scrape.conversion import Converted, NoText, convert
from toolhub_servers.scrape.model import Page, PageRenderer, PageUnreadable, ReaderBusy
from toolhub_servers.scrape.settings import JINA, PageSettings
from toolhub_servers.web.charset import decode_text
from toolhub_servers.web.client import Web
from toolhub_servers.web.errors import BadStatus, ResourceLimitExceeded, WebError
from toolhub_servers.web.workers import offload

NO_KEY = "JINA_API_KEY environment variable is not set"
NO_URL = "URL cannot be empty"
NO_CONTENT_FROM_JINA = "No content returned from Jina.ai API"
NO_BALANCE = "Insufficient balance"
_TITLE = "Title: "


class JinaReader:
    """The `jina` reader. Give it a client of its own, because all its requests go to one host."""

    name = "jina"

    def __init__(self, web: Web, *, base_url: str, api_key: str, max_chars: int) -> None:
        self._web = web
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._max_chars = max_chars

    def __repr__(self) -> str:
        return f"<JinaReader {self._base_url}>"

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Read a page. Raises PageUnreadable, also without a key; WebError."""
        if not url:
            raise PageUnreadable(NO_URL)
        if not self._api_key:
            raise PageUnreadable(NO_KEY)
        ours = {"Authorization": f"Bearer {self._api_key}"}
        try:
            reply = await self._web.get(f"{self._base_url}/{url}", headers={**_foreign(headers), **ours})
        except BadStatus as exc:
            if is_out_of_balance(exc.text):
                raise PageUnreadable(NO_BALANCE) from exc
            if exc.status == 429 or (
                exc.status == 503 and exc.retry_after is not None
            ):  # another 503 may be the page's
                raise ReaderBusy(str(exc), status=exc.status, text=exc.text, retry_after=exc.retry_after) from exc
            raise
        text = decode_text(reply.body, reply.headers.get("content-type", ""))
        if not text.strip():
            raise PageUnreadable(NO_CONTENT_FROM_JINA)
        if is_out_of_balance(text):
            raise PageUnreadable(NO_BALANCE)
        first = text.partition("\n")[0]
        title = first.removeprefix(_TITLE).strip() if first.startswith(_TITLE) else ""
        is_cut = reply.is_cut or len(text) > self._max_chars
        note = (
            f"Only the first {min(len(text), self._max_chars)} characters are here; there was more." if is_cut else ""
        )
        return Page(url, title, text[: self._max_chars], "jina", is_cut, note)


def unwrapped(url: str, base_url: str) -> str:
    """Return the page's own URL, if a model has put Jina Reader's before it."""
    for prefix in (JINA, base_url):
        if url.startswith(f"{prefix}/http"):
            return url.removeprefix(f"{prefix}/")
    return url


def is_out_of_balance(text: str) -> bool:
    """Whether the answer is the JSON object of this error, and not a page about it."""
    if len(text) > 4096 or not text.lstrip().startswith("{"):
        return False
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("name") == "InsufficientBalanceError"


def _foreign(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without one that would replace our key."""
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}


class Converter:
    """Converts bodies within `convert_s` and `convert_bytes` of the settings."""

    def __init__(self, settings: PageSettings) -> None:
        self._settings = settings

    async def page(self, body: bytes, content_type: str, url: str, *, is_cut: bool = False) -> Page:
        """Return the page. is_cut: `body` is only the beginning. Raises PageUnreadable."""
        cut_short = f"only its first {len(body)} bytes were read" if is_cut else ""
        try:
            done = await offload(
                convert,
                body,
                content_type,
                url,
                self._settings.max_chars,
                returns=Converted,
                raises=(NoText,),
                timeout=self._settings.convert_s,
                memory_bytes=self._settings.convert_bytes,
            )
        except (NoText, ResourceLimitExceeded) as exc:
            raise PageUnreadable(f"{exc}; {cut_short}" if is_cut else str(exc)) from exc
        except RuntimeError as exc:  # a parser failed, perhaps on a page that was made for that
            raise PageUnreadable(f"the page could not be converted: {exc}") from exc
        notes = []
        if is_cut:
            notes.append(f"{cut_short[0].upper()}{cut_short[1:]}; there was more.")
        if done.is_cut:
            notes.append(f"Only the first {len(done.text)} characters are here; there was more.")
        return Page(url, done.title, done.text, done.kind, is_cut or done.is_cut, " ".join(notes))


NO_CONTENT = "No content returned from URL"
ACCEPT = "text/html,application/xhtml+xml,application/pdf;q=0.9,*/*;q=0.8"


class DirectReader:
    """The `direct` reader. It reaches private addresses only if the settings allow them."""

    name = "direct"

    def __init__(self, web: Web, converter: Converter, *, user_agent: str = "") -> None:
        self._web = web
        self._headers = {"accept": ACCEPT, **({"user-agent": user_agent} if user_agent else {})}
        self._converter = converter

    def __repr__(self) -> str:
        return "<DirectReader>"

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Read a page. Raises PageUnreadable for an answer without text, WebError."""
        if not url:
            raise PageUnreadable(NO_URL)
        reply = await self._web.get(url, headers={**self._headers, **headers})
        if not reply.body.strip():
            raise PageUnreadable(NO_CONTENT)
        content_type = reply.headers.get("content-type", "")
        return await self._converter.page(reply.body, content_type, reply.url, is_cut=reply.is_cut)


class BrowserReader:
    """The `browser` reader: text of the HTML that a browser has after running scripts. It sends no caller's headers.

    find: called for each page; returns the browser, or raises a ToolhubError if there is none.
    """

    name = "browser"

    def __init__(self, find: Callable[[], Awaitable[PageRenderer]], converter: Converter, *, timeout: float) -> None:
        self._find = find
        self._converter = converter
        self._timeout = timeout

    def __repr__(self) -> str:
        return "<BrowserReader>"

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Read a page. Raises PageUnreadable if there is no browser or no text; WebError."""
        try:
            renderer = await self._find()
            html = await renderer.render(url, timeout=self._timeout)
        except (WebError, PageUnreadable):
            raise
        except ToolhubError as exc:
            raise PageUnreadable(f"there is no browser here: {exc}") from exc
        return await self._converter.page(html.encode(errors="replace"), "text/html; charset=utf-8", url)
