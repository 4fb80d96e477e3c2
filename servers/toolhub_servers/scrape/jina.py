"""Reading through Jina Reader, which renders pages and documents elsewhere and is paid for each one."""

from __future__ import annotations

import json
from collections.abc import Mapping

from toolhub_servers.scrape.model import Page, ReaderBusy, Unreadable
from toolhub_servers.scrape.settings import JINA
from toolhub_servers.web import BadStatus, Web, decode_text

NO_KEY = "JINA_API_KEY environment variable is not set"
NO_URL = "URL cannot be empty"
NO_CONTENT = "No content returned from Jina.ai API"
NO_BALANCE = "Insufficient balance"
_TITLE = "Title: "


class JinaReader:
    """Give it a client of its own: all its requests go to one host."""

    name = "jina"

    def __init__(self, web: Web, *, base_url: str, api_key: str, max_chars: int) -> None:
        self._web = web
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._max_chars = max_chars

    def __repr__(self) -> str:
        return f"<JinaReader {self._base_url}>"

    async def read(self, url: str, headers: Mapping[str, str]) -> Page:
        """Raises Unreadable, also without a key; WebError."""
        if not url:
            raise Unreadable(NO_URL)
        if not self._api_key:
            raise Unreadable(NO_KEY)
        ours = {"Authorization": f"Bearer {self._api_key}"}
        try:
            reply = await self._web.get(f"{self._base_url}/{url}", headers={**_foreign(headers), **ours})
        except BadStatus as exc:
            if is_out_of_balance(exc.text):
                raise Unreadable(NO_BALANCE) from exc
            if exc.status == 429 or (exc.status == 503 and exc.retry_after is not None):  # else 503 may be the page's
                raise ReaderBusy(str(exc), status=exc.status, text=exc.text, retry_after=exc.retry_after) from exc
            raise
        text = decode_text(reply.body, reply.headers.get("content-type", ""))
        if not text.strip():
            raise Unreadable(NO_CONTENT)
        if is_out_of_balance(text):
            raise Unreadable(NO_BALANCE)
        first = text.partition("\n")[0]
        title = first.removeprefix(_TITLE).strip() if first.startswith(_TITLE) else ""
        is_cut = reply.is_cut or len(text) > self._max_chars
        note = (
            f"Only the first {min(len(text), self._max_chars)} characters are here; there was more." if is_cut else ""
        )
        return Page(url, title, text[: self._max_chars], "jina", is_cut, note)


def unwrapped(url: str, base_url: str) -> str:
    """The page's own URL, if a model has put Jina Reader's before it."""
    for prefix in (JINA, base_url):
        if url.startswith(f"{prefix}/http"):
            return url.removeprefix(f"{prefix}/")
    return url


def is_out_of_balance(text: str) -> bool:
    """Whether the answer is the JSON object that says so, and not a page about it."""
    if len(text) > 4096 or not text.lstrip().startswith("{"):
        return False
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("name") == "InsufficientBalanceError"


def _foreign(headers: Mapping[str, str]) -> dict[str, str]:
    """Without what would stand in for our key."""
    return {name: value for name, value in headers.items() if name.lower() != "authorization"}
