"""A list of a server is read to its end, and one that is too long or has no end is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from toolhub.channel.pages import MAX_LIST_BYTES, MAX_PAGES, all_pages
from toolhub.errors import ProtocolViolation
from toolhub.model import Json

pytestmark = [pytest.mark.anyio, pytest.mark.quick]

MEBIBYTE = "x" * (1 << 20)


def pages(*listed: Json) -> Callable[[str | None], Awaitable[Json]]:
    """A server that lists these entries, one on each page; the cursor is the number of the page."""

    async def ask(cursor: str | None) -> Json:
        number = int(cursor or 0)
        following = {"nextCursor": str(number + 1)} if number + 1 < len(listed) else {}
        return {"tools": [listed[number]], **following}

    return ask


async def test_the_entries_of_all_pages_come_in_order() -> None:
    entries = [{"name": str(number)} for number in range(5)]
    assert await all_pages("s", "tools/list", "tools", pages(*entries)) == entries


async def test_pages_that_are_too_large_together_are_refused() -> None:
    fitting = [{"name": MEBIBYTE}] * (MAX_LIST_BYTES // len(MEBIBYTE) - 1)
    assert len(await all_pages("s", "tools/list", "tools", pages(*fitting))) == len(fitting)
    with pytest.raises(ProtocolViolation, match=r"tools/list of server 's' has pages of more than 67108864 bytes"):
        await all_pages("s", "tools/list", "tools", pages(*fitting, *fitting[:2]))


async def test_one_large_page_is_an_answer_like_any_other() -> None:
    large = {"name": "x" * (MAX_LIST_BYTES + 1)}
    assert await all_pages("s", "tools/list", "tools", pages(large)) == [large]


async def test_a_cursor_without_an_end_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match=f"more than {MAX_PAGES} pages; its cursor never ends"):
        await all_pages("s", "tools/list", "tools", pages(*[{}] * (MAX_PAGES + 1)))


async def test_an_answer_without_the_list_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="server 's' answered prompts/list without a list of prompts"):
        await all_pages("s", "prompts/list", "prompts", pages({}))
