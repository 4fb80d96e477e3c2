"""Slots, on both event loops; races are staged, not hoped for."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint
from toolhub_agent.errors import LlmUnavailable
from toolhub_agent.llm import concurrency as module
from toolhub_agent.llm.concurrency import ConcurrencyLimiter, SlotStatistics

pytestmark = pytest.mark.anyio
URL = "http://a/v1"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def soon() -> float:
    return anyio.current_time() + 10


async def until_waiting(slots: ConcurrencyLimiter, count: int) -> None:
    with anyio.fail_after(30):
        while slots.statistics(URL).waiting != count:
            await checkpoint()


async def test_slots_are_given_in_the_order_of_asking():
    slots, order = ConcurrencyLimiter(1), []

    async def task(name: int) -> None:
        async with slots.hold(URL, deadline=soon()):
            order.append(name)

    async with anyio.create_task_group() as tasks:
        async with slots.hold(URL, deadline=soon()):
            for name in range(4):
                tasks.start_soon(task, name)
                await until_waiting(slots, name + 1)
    assert order == [0, 1, 2, 3]


async def test_one_who_comes_does_not_overtake_one_who_was_just_granted():
    slots, order = ConcurrencyLimiter(1), []
    held = await slots.acquire(URL, deadline=soon())

    async def task(name: str) -> None:
        async with slots.hold(URL, deadline=soon()):
            order.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task, "waited")
        await until_waiting(slots, 1)
        held.release()  # granted, but its task has not run yet
        await task("came")
    assert order == ["waited", "came"]


async def test_a_cancelled_waiter_loses_no_slot():
    slots = ConcurrencyLimiter(1)
    held = await slots.acquire(URL, deadline=soon())
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            await slots.acquire(URL, deadline=soon())

        tasks.start_soon(wait)
        await until_waiting(slots, 1)
        tasks.cancel_scope.cancel()
    held.release()
    assert slots.statistics(URL) == SlotStatistics(1, 0, 0)


async def test_a_waiter_cancelled_in_the_moment_of_its_grant_passes_the_slot_on():
    slots, got = ConcurrencyLimiter(1), []
    held = await slots.acquire(URL, deadline=soon())
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def unlucky() -> None:
            with scope:
                async with slots.hold(URL, deadline=soon()):
                    await checkpoint()  # where the cancellation is delivered at the latest

        async def next_one() -> None:
            async with slots.hold(URL, deadline=soon()):
                got.append("next")

        tasks.start_soon(unlucky)
        await until_waiting(slots, 1)
        tasks.start_soon(next_one)
        await until_waiting(slots, 2)
        scope.cancel()
        held.release()  # granted to the one that is already cancelled
    assert got == ["next"]
    assert slots.statistics(URL) == SlotStatistics(1, 0, 0)


async def test_who_gets_no_slot_until_the_deadline_is_told_where_and_why():
    slots = ConcurrencyLimiter(1)
    async with slots.hold(URL, deadline=soon()):
        with pytest.raises(LlmUnavailable, match=r"http://a/v1: no slot became free in time \(1 of 1 in use, 0 wait\)"):
            await slots.acquire(URL, deadline=anyio.current_time() + 0.01)
    assert slots.statistics(URL) == SlotStatistics(1, 0, 0)


async def test_a_failing_block_gives_its_slot_back():
    slots = ConcurrencyLimiter(1)
    with pytest.raises(KeyError):
        async with slots.hold(URL, deadline=soon()):
            raise KeyError
    assert slots.statistics(URL).in_use == 0


async def test_a_slot_is_given_back_once_however_often_it_is_said():
    slots = ConcurrencyLimiter(2)
    slot, _other = [await slots.acquire(URL, deadline=soon()) for _ in range(2)]
    slot.release()
    slot.release()
    assert slots.statistics(URL).in_use == 1


async def test_a_higher_limit_lets_waiters_in_and_a_lower_one_interrupts_nobody():
    slots = ConcurrencyLimiter(1)
    async with anyio.create_task_group() as tasks:
        release = anyio.Event()

        async def task() -> None:
            async with slots.hold(URL, deadline=soon()):
                await release.wait()

        for _ in range(3):
            tasks.start_soon(task)
        await until_waiting(slots, 2)
        slots.set_limit(URL, 3)
        await until_waiting(slots, 0)
        slots.set_limit(URL, 1)
        assert slots.statistics(URL) == SlotStatistics(1, 3, 0)
        tasks.start_soon(task)
        await until_waiting(slots, 1)
        release.set()
    assert slots.statistics(URL) == SlotStatistics(1, 0, 0)


async def test_endpoints_do_not_share_slots():
    slots = ConcurrencyLimiter(1)
    async with slots.hold(URL, deadline=soon()), slots.hold("http://b/v1", deadline=soon()):
        assert slots.statistics(URL).in_use == slots.statistics("http://b/v1").in_use == 1


async def test_the_queue_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_QUEUE", 0)
    slots = ConcurrencyLimiter(1)
    async with slots.hold(URL, deadline=soon()):
        with pytest.raises(LlmUnavailable, match="already wait"):
            await slots.acquire(URL, deadline=soon())


async def test_waiting_for_use_ends_with_the_first_slot():
    slots, seen = ConcurrencyLimiter(1), []

    async def watch() -> None:
        await slots.wait_busy()
        seen.append(slots.statistics(URL).in_use)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        assert not slots.is_busy and seen == []
        async with slots.hold(URL, deadline=soon()):
            await anyio.wait_all_tasks_blocked()
    assert seen == [1]
