"""The lists of a server, which come in pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic_core import to_json

from toolhub.errors import ProtocolViolation
from toolhub.model import Json

MAX_PAGES = 1000
# Of all pages of one list. A list of one page is an answer, which `limits.max_result_bytes` bounds.
MAX_LIST_BYTES = 1 << 26


async def all_pages(server: str, method: str, key: str, ask: Callable[[str | None], Awaitable[Json]]) -> list[Json]:
    """Return the entries of a list from all its pages. ask: returns the page of a cursor; of None the first.

    Raises ProtocolViolation for a page that has no list, and for a list that never ends or is too long.
    """
    entries: list[Json] = []
    cursor: str | None = None
    size = 0
    for _ in range(MAX_PAGES):
        page = await ask(cursor)
        listed = page.get(key)
        if not isinstance(listed, list):
            raise ProtocolViolation(f"server {server!r} answered {method} without a list of {key}", server=server)
        entries += [one for one in listed if isinstance(one, dict)]
        cursor = page.get("nextCursor")
        if cursor or size:
            size += len(to_json(page))
        if size > MAX_LIST_BYTES:
            raise ProtocolViolation(
                f"{method} of server {server!r} has pages of more than {MAX_LIST_BYTES} bytes together", server=server
            )
        if not cursor:
            return entries
    raise ProtocolViolation(
        f"{method} of server {server!r} has more than {MAX_PAGES} pages; its cursor never ends", server=server
    )
