"""The memo: what many ask for at once is made once, whoever of them goes away."""

from __future__ import annotations

import anyio
import pytest
from toolhub_servers.web.cache import Cache, open_cache
from toolhub_servers.web.errors import Unreachable, WebError
from trio.testing import MockClock

from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


class Oven:
    """Makes values when it is told to, and counts."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun = self.finished = self.cancelled = 0
        self.may_finish = anyio.Event()
        self._fails = fails

    async def __call__(self) -> str:
        self.begun += 1
        try:
            await self.may_finish.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        self.finished += 1
        if self._fails:
            raise Unreachable("the oven is cold")
        return f"cake {self.finished}"


async def ready(value: str = "v") -> str:
    return value


async def test_callers_at_the_same_time_share_one_flight_and_later_ones_what_it_brought():
    oven, got = Oven(), []

    async def ask(memo: Cache) -> None:
        got.append(await memo.get("q", oven, size=len))

    with anyio.fail_after(PATIENCE_S):
        async with open_cache() as memo:
            async with anyio.create_task_group() as asking:
                for _ in range(60):
                    asking.start_soon(ask, memo)
                await anyio.wait_all_tasks_blocked()
                oven.may_finish.set()
            assert got == ["cake 1"] * 60
            assert await memo.get("q", oven) == "cake 1"
            counted = memo.statistics()
            assert (oven.begun, counted.misses, counted.joined, counted.hits) == (1, 1, 59, 1)
            assert (counted.entries, counted.size_bytes, counted.in_flight) == (1, len("cake 1"), 0)


async def test_a_first_caller_that_is_cancelled_takes_nothing_from_those_who_joined():
    oven, got = Oven(), []

    async def ask(memo: Cache) -> None:
        got.append(await memo.get("q", oven))

    with anyio.fail_after(PATIENCE_S):
        async with open_cache() as memo, anyio.create_task_group() as asking:
            async with anyio.create_task_group() as first:
                first.start_soon(ask, memo)
                await anyio.wait_all_tasks_blocked()
                asking.start_soon(ask, memo)
                await anyio.wait_all_tasks_blocked()
                first.cancel_scope.cancel()
            assert got == []
            oven.may_finish.set()
    assert (got, oven.begun, oven.cancelled) == (["cake 1"], 1, 0)


async def test_a_flight_that_nobody_waits_for_is_cancelled_and_not_joined():
    oven = Oven()
    with anyio.fail_after(PATIENCE_S):
        async with open_cache() as memo:
            async with anyio.create_task_group() as asking:
                for _ in range(2):
                    asking.start_soon(memo.get, "q", oven)
                await anyio.wait_all_tasks_blocked()
                asking.cancel_scope.cancel()
            assert memo.statistics().in_flight == 0
            oven.may_finish.set()
            assert await memo.get("q", oven) == "cake 1"
            assert (oven.begun, oven.cancelled, memo.statistics().cancelled) == (2, 1, 1)


async def test_an_error_is_given_to_all_who_waited_and_not_kept():
    oven, told = Oven(fails=True), []

    async def ask(memo: Cache) -> None:
        with pytest.raises(Unreachable, match="the oven is cold") as raised:
            await memo.get("q", oven)
        told.append(len(raised.traceback))

    with anyio.fail_after(PATIENCE_S):
        async with open_cache() as memo:
            async with anyio.create_task_group() as asking:
                for _ in range(3):
                    asking.start_soon(ask, memo)
                await anyio.wait_all_tasks_blocked()
                oven.may_finish.set()
            assert len(told) == 3 and len(set(told)) == 1  # the traceback does not grow from one to the next
            await ask(memo)
            assert (oven.begun, memo.statistics().errors, memo.statistics().entries) == (2, 2, 0)


async def test_a_memo_that_is_closed_tells_those_who_wait():
    told = []

    async def ask(memo: Cache) -> None:
        with pytest.raises(WebError, match="closed"):
            await memo.get("q", Oven())
        told.append(True)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as asking:
            async with open_cache() as memo:
                asking.start_soon(ask, memo)
                await anyio.wait_all_tasks_blocked()
    assert told == [True]


async def test_the_longest_unused_goes_when_there_is_no_room():
    with anyio.fail_after(PATIENCE_S):
        async with open_cache(max_bytes=10) as memo:
            for key in "ab":
                await memo.get(key, lambda: ready("12345"), size=len)
            await memo.get("a", ready)
            await memo.get("c", lambda: ready("12345"), size=len)
            counted = memo.statistics()
            assert (counted.entries, counted.size_bytes, counted.evicted) == (2, 10, 1)
            await memo.get("a", ready)
            assert memo.statistics().misses == 3
            await memo.get("b", ready)
            assert memo.statistics().misses == 4


async def test_what_is_larger_than_all_the_room_is_given_but_not_kept():
    with anyio.fail_after(PATIENCE_S):
        async with open_cache(max_bytes=10) as memo:
            await memo.get("small", ready, size=len)
            assert await memo.get("large", lambda: ready("x" * 11), size=len) == "x" * 11
            assert (memo.statistics().entries, memo.statistics().evicted) == (1, 0)


async def test_there_are_never_more_entries_than_wanted():
    with anyio.fail_after(PATIENCE_S):
        async with open_cache(max_entries=3) as memo:
            for number in range(10):
                await memo.get(number, ready)
            assert memo.statistics().entries == 3


async def test_none_is_a_value_like_any_other():
    made = []

    async def make() -> None:
        made.append(True)

    with anyio.fail_after(PATIENCE_S):
        async with open_cache() as memo:
            assert await memo.get("q", make) is None
            assert await memo.get("q", make) is None
    assert made == [True]


async def test_what_was_forgotten_is_made_anew():
    with anyio.fail_after(PATIENCE_S):
        async with open_cache() as memo:
            await memo.get("q", ready)
            memo.forget("q")
            memo.forget("never asked for")
            assert (memo.statistics().entries, memo.statistics().size_bytes) == (0, 0)


async def test_tasks_find_the_same_memo_in_the_commons():
    with anyio.fail_after(PATIENCE_S):
        async with open_shared_resources() as resources:
            memo = await resources.get_or_open("memo serper", open_cache)
            await memo.get("q", ready)
            assert await resources.get_or_open("memo serper", open_cache) is memo
            assert resources.statistics()["memo serper"]["misses"] == 1


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})], ids=["time"])
async def test_what_is_kept_is_kept_for_its_time_only():
    async with open_cache(ttl_s=60) as memo:
        await memo.get("q", ready)
        await anyio.sleep(59)
        await memo.get("q", ready)
        assert memo.statistics().hits == 1
        await anyio.sleep(1)  # from the making, not from the last use
        await memo.get("q", ready)
        assert (memo.statistics().hits, memo.statistics().misses, memo.statistics().entries) == (1, 2, 1)
