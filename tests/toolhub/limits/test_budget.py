"""Room for sessions: counted, made by ending what is idle, waited for in turns, and refused clearly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from in_memory_hub import WAIT_TIMEOUT_S, a_hub, echo, virtual_time
from running import Running

from toolhub.channel.memory import MemoryServer
from toolhub.errors import Overloaded
from toolhub.limits.budget import Budget
from toolhub.limits.descriptors import open_descriptors
from toolhub.model import FairShareKey

pytestmark = pytest.mark.anyio


class Idle:
    """A session that can be ended for room; `room` is where it stays until then."""

    def __init__(self, idle_seconds: float, *, may_be_evicted: bool = True) -> None:
        self.idle_seconds = idle_seconds
        self.may_be_evicted = may_be_evicted
        self.ended, self.gone = anyio.Event(), anyio.Event()

    async def stop_if_idle(self, limit: float) -> bool:
        if not self.may_be_evicted:
            return False
        self.may_be_evicted = False
        self.ended.set()
        await self.gone.wait()
        return True

    async def stay(self, budget: Budget) -> None:
        async with budget.room("s", FairShareKey(), WAIT_TIMEOUT_S):
            await self.ended.wait()
        self.gone.set()


@asynccontextmanager
async def a_budget(*slots: Idle, **limits: int) -> AsyncIterator[Budget]:
    async with anyio.create_task_group() as owners:
        budget = Budget(slots=lambda: slots, owners=owners, **limits)
        for slot in slots:
            owners.start_soon(slot.stay, budget)
        await anyio.wait_all_tasks_blocked()
        yield budget
        for slot in slots:
            slot.ended.set()


async def enter(budget: Budget, patience: float = WAIT_TIMEOUT_S) -> str:
    async with budget.room("search", FairShareKey("t"), patience):
        return "in"


async def test_room_is_counted_and_given_back():
    async with a_budget(processes=1) as budget:
        async with budget.room("s", FairShareKey(), 1):
            assert budget.processes == 1
        assert budget.processes == 0


async def test_the_session_that_was_idle_longest_makes_room():
    young, old, busy = Idle(5), Idle(50), Idle(500, may_be_evicted=False)
    async with a_budget(young, old, busy, processes=3) as budget:
        assert await enter(budget) == "in"
        assert (old.ended.is_set(), young.ended.is_set(), busy.ended.is_set()) == (True, False, False)
        await anyio.wait_all_tasks_blocked()
        assert budget.statistics().evictions == 1


async def test_no_more_sessions_are_ended_than_are_waited_for():
    idle = [Idle(number) for number in range(6)]
    async with a_budget(*idle, processes=6) as budget, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(enter, budget)
    assert budget.evictions == 2


async def test_who_cannot_be_given_room_waits_until_somebody_leaves():
    busy = Idle(0, may_be_evicted=False)
    async with a_budget(busy, processes=1) as budget, anyio.create_task_group() as tasks:
        waiting = Running(tasks, enter, budget)
        await anyio.wait_all_tasks_blocked()
        assert (waiting.is_done, budget.waiting) == (False, 1)
        busy.ended.set()
        assert await waiting.wait() == "in"


async def test_a_session_that_falls_idle_makes_room_for_who_waits():
    busy = Idle(0, may_be_evicted=False)
    async with a_budget(busy, processes=1) as budget, anyio.create_task_group() as tasks:
        waiting = Running(tasks, enter, budget)
        await anyio.wait_all_tasks_blocked()
        busy.may_be_evicted = True
        budget.check()
        assert await waiting.wait() == "in"
        assert busy.ended.is_set()


async def test_a_cancelled_waiter_takes_no_room_with_it():
    busy = Idle(0, may_be_evicted=False)
    async with a_budget(busy, processes=1) as budget, anyio.create_task_group() as tasks:
        waiting = Running(tasks, enter, budget)
        await anyio.wait_all_tasks_blocked()
        waiting.cancel()
        assert await waiting.wait() is None
        busy.ended.set()
        assert await enter(budget) == "in"
    assert (budget.processes, budget.waiting) == (0, 0)


async def test_descriptors_count_as_well():
    async with a_budget(open_files=open_descriptors() + 3) as budget:
        with pytest.raises(Overloaded, match=r"descriptors are open \(limits.open_files\)"):
            await enter(budget, patience=0.01)


async def test_too_much_memory_ends_an_idle_session_and_keeps_others_from_starting():
    idle = Idle(1)
    async with a_budget(idle, memory_bytes=1000) as budget, anyio.create_task_group() as tasks:
        budget.measured(1001)
        await anyio.wait_all_tasks_blocked()
        assert idle.ended.is_set()
        waiting = Running(tasks, enter, budget)
        await anyio.wait_all_tasks_blocked()
        assert not waiting.is_done
        budget.measured(500)
        assert await waiting.wait() == "in"


class TestInTime:
    @pytest.fixture
    def anyio_backend(self):
        return virtual_time()

    async def test_who_finds_no_room_is_refused_after_the_patience_with_the_reason(self):
        async with a_budget(Idle(0, may_be_evicted=False), processes=1) as budget:
            before = anyio.current_time()
            with pytest.raises(Overloaded, match="no room to start server 'search' within 30 s: 1 of 1 processes"):
                await enter(budget, patience=30)
            assert anyio.current_time() - before == pytest.approx(30)
            assert budget.statistics().refusals == 1

    async def test_a_refused_start_is_no_death_and_the_next_call_tries_again(self):
        server = MemoryServer(echo=echo)
        limits = {"processes": 1}
        async with a_hub(server, limits=limits) as hub, hub.task("one") as one, hub.task("two") as two:
            await one.call("memory", "echo")
            with pytest.raises(Overloaded, match="processes are in use"):
                await two.call("memory", "echo")
            await hub.close_task("one")
            assert not (await two.call("memory", "echo")).is_error
            assert hub.statistics().deaths == 0

    async def test_an_idle_session_of_another_task_is_ended_only_if_nothing_is_lost(self):
        server = MemoryServer(echo=echo)
        forgetful = {"stateful": False}
        async with a_hub(server, limits={"processes": 1}, memory=forgetful) as hub:
            async with hub.task("one") as one, hub.task("two") as two:
                for task in (one, two, one):
                    assert not (await task.call("memory", "echo")).is_error
                assert hub.statistics().budget.evictions == 2
                assert len(server.live) == 1
