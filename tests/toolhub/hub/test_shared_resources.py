"""Things that servers share: opened once, closed with the hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

import anyio
import pytest

from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio


class Shelf:
    """Counts what is opened and closed on it."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.may_open = anyio.Event()

    def thing(self, name: str, *, waits: bool = False, fails: bool = False):
        @asynccontextmanager
        async def open_thing() -> AsyncIterator[str]:
            self.opened.append(name)
            if waits:
                await self.may_open.wait()
            if fails:
                raise ValueError(f"no {name}")
            try:
                yield name
            finally:
                self.closed.append(name)

        return open_thing


async def test_callers_at_the_same_time_share_one_opening():
    shelf, got = Shelf(), []
    with anyio.fail_after(30):
        async with open_shared_resources() as resources:

            async def ask() -> None:
                got.append(await resources.get_or_open("pool", shelf.thing("pool", waits=True)))

            async with anyio.create_task_group() as asking:
                for _ in range(3):
                    asking.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                shelf.may_open.set()
            assert (got, shelf.opened, shelf.closed) == (["pool"] * 3, ["pool"], [])
    assert shelf.closed == ["pool"]


async def test_the_last_opened_is_closed_first():
    shelf = Shelf()
    with anyio.fail_after(30):
        async with open_shared_resources() as resources:
            await resources.get_or_open("a", shelf.thing("a"))
            await resources.get_or_open("b", shelf.thing("b"))
    assert shelf.closed == ["b", "a"]


async def test_what_could_not_be_opened_is_tried_again_by_the_next():
    shelf = Shelf()
    with anyio.fail_after(30):
        async with open_shared_resources() as resources:
            with pytest.raises(ValueError, match="no pool"):
                await resources.get_or_open("pool", shelf.thing("pool", fails=True))
            assert await resources.get_or_open("pool", shelf.thing("pool")) == "pool"
    assert shelf.closed == ["pool"]


async def test_what_was_dropped_is_opened_anew():
    shelf = Shelf()
    with anyio.fail_after(30):
        async with open_shared_resources() as resources:
            await resources.get_or_open("pool", shelf.thing("pool"))
            await resources.drop("pool")
            assert shelf.closed == ["pool"]
            await resources.get_or_open("pool", shelf.thing("pool"))
            assert shelf.opened == ["pool", "pool"]
            await resources.drop("never opened")


async def test_a_caller_that_is_cancelled_while_opening_costs_the_next_one_nothing():
    shelf = Shelf()
    with anyio.fail_after(30):
        async with open_shared_resources() as resources:
            async with anyio.create_task_group() as asking:
                asking.start_soon(resources.get_or_open, "pool", shelf.thing("pool", waits=True))
                await anyio.wait_all_tasks_blocked()
                asking.cancel_scope.cancel()
            shelf.may_open.set()
            assert await resources.get_or_open("pool", shelf.thing("pool")) == "pool"


@dataclass(frozen=True)
class Counted:
    requests: int
    share: float
    name: str = "not a number"


class Counting:
    def __init__(self, counted: object) -> None:
        self._counted = counted

    def statistics(self) -> object:
        return self._counted


async def test_the_numbers_of_what_counts_are_told_by_key():
    with anyio.fail_after(30):
        async with open_shared_resources() as resources:
            await resources.get_or_open("pool", lambda: nullcontext(Counting(Counted(3, 0.5))))
            await resources.get_or_open("cache", lambda: nullcontext(Counting({"hits": 1})))
            await resources.get_or_open("plain", lambda: nullcontext(object()))
            assert resources.statistics() == {"cache": {"hits": 1}, "pool": {"requests": 3, "share": 0.5}}
            await resources.drop("pool")
            assert list(resources.statistics()) == ["cache"]
        assert resources.statistics() == {}
