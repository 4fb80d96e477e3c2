"""A slot starts one session at a time, on demand, for everybody who waits."""

from __future__ import annotations

import anyio
import pytest
from in_memory_hub import WAIT_TIMEOUT_S, Pausing, a_call, call, echo, open_slot
from running import Running

from toolhub.channel.memory import MemoryServer
from toolhub.errors import HubClosed, SessionLost, StartError
from toolhub.limits.start_limiter import StartLimiter
from toolhub.sessions.lifecycle import SlotState

pytestmark = pytest.mark.anyio


def holding_back(**tools) -> MemoryServer:
    """A server that opens when `may_open` is set."""
    server = MemoryServer(echo=echo, **tools)
    server.may_open = anyio.Event()
    return server


async def test_nothing_is_started_before_it_is_needed():
    server = MemoryServer(echo=echo)
    async with open_slot(server) as slot:
        await anyio.wait_all_tasks_blocked()
        assert (server.opened, repr(slot)) == (0, "<Slot memory/t1 IDLE in_use=0>")
        await call(slot)
        await call(slot)
        assert (server.opened, repr(slot)) == (1, "<Slot memory/t1 LIVE in_use=0>")


async def test_callers_who_come_while_it_starts_share_that_start():
    server = holding_back()
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        callers = [Running(tasks, call, slot) for _ in range(32)]
        await anyio.wait_all_tasks_blocked()
        assert (server.opened, slot.in_use, slot.state) == (1, 32, SlotState.STARTING)
        server.may_open.set()
        for caller in callers:
            assert not (await caller.wait()).is_error
        assert (server.opened, slot.counters.starts, slot.in_use) == (1, 1, 0)


async def test_callers_who_share_a_start_get_its_error_each_as_an_object_of_its_own():
    server = holding_back()
    server.fail_next = ["no such program"]
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        callers = [Running(tasks, call, slot) for _ in range(32)]
        await anyio.wait_all_tasks_blocked()
        server.may_open.set()
        errors = [await caller.wait() for caller in callers]
        assert {type(error) for error in errors} == {StartError}
        assert all("no such program" in str(error) and error.sent == "no" for error in errors)
        assert len({id(error) for error in errors}) == 32
        assert (server.opened, slot.counters.deaths) == (1, 1)


async def test_a_cancelled_first_caller_does_not_cancel_the_start_that_others_wait_for():
    server = holding_back()
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        first = Running(tasks, call, slot)
        await anyio.wait_all_tasks_blocked()
        second = Running(tasks, call, slot)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        assert await first.wait() is None
        server.may_open.set()
        assert not (await second.wait()).is_error
        assert server.opened == 1


async def test_a_cancelled_waiter_does_not_lose_the_session():
    server = holding_back()
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        waiter = Running(tasks, call, slot)
        await anyio.wait_all_tasks_blocked()
        waiter.cancel()
        await waiter.wait()
        server.may_open.set()
        await anyio.wait_all_tasks_blocked()
        assert (slot.state, slot.in_use) == (SlotState.LIVE, 0)
        await call(slot)
        assert server.opened == 1


async def test_a_start_that_failed_is_tried_again_for_the_next_caller():
    server = MemoryServer(echo=echo)
    server.fail_next = ["not yet"]
    async with open_slot(server) as slot:
        with pytest.raises(StartError, match="not yet"):
            await call(slot)
        assert slot.state is SlotState.BACKOFF
        assert not (await call(slot)).is_error
        assert (server.opened, slot.counters.deaths) == (2, 1)


async def test_an_opener_that_raises_nonsense_is_a_failed_start():
    class Nonsense(MemoryServer):
        def open(self, *_):
            raise ZeroDivisionError("a bug")

    async with open_slot(Nonsense()) as slot:
        with pytest.raises(StartError, match="ZeroDivisionError"):
            await call(slot)
        assert slot.state is SlotState.BACKOFF


async def test_32_callers_who_fail_together_cause_one_restart():
    pause = Pausing()
    server = MemoryServer(pause=pause, echo=echo)
    async with open_slot(server, stateful=False) as slot, anyio.create_task_group() as tasks:

        async def call_until_answered() -> str:
            try:
                return (await call(slot, "pause")).text
            except SessionLost:
                return (await call(slot)).text

        callers = [Running(tasks, call_until_answered) for _ in range(32)]
        await anyio.wait_all_tasks_blocked()
        assert pause.inside == 32
        server.die()
        assert [await caller.wait() for caller in callers] == [""] * 32
        assert (server.opened, slot.counters.starts, slot.counters.deaths) == (2, 2, 1)
        assert len(server.live) == 1


async def test_one_caller_s_loss_does_not_end_what_another_has_started_since():
    pause = Pausing()
    server = MemoryServer(pause=pause, echo=echo)
    async with open_slot(server, stateful=False) as slot, anyio.create_task_group() as tasks:
        late = Running(tasks, call, slot, "pause")
        await anyio.wait_all_tasks_blocked()
        server.die()
        await anyio.wait_all_tasks_blocked()
        fresh = Running(tasks, call, slot, "pause")
        assert isinstance(await late.wait(), SessionLost)
        await anyio.wait_all_tasks_blocked()
        assert pause.inside == 1
        pause.go.set()
        assert (await fresh.wait()).text == "done"


async def test_a_death_while_idle_is_noticed_without_a_call():
    server = MemoryServer(echo=echo)
    async with open_slot(server) as slot:
        await call(slot)
        server.die(-11)
        await anyio.wait_all_tasks_blocked()
        told = slot.statistics()
        assert (told.state, told.pid, told.deaths) == ("BACKOFF", None, 1)
        assert told.last_error == "was killed by signal 11"
        assert server.live == []


async def test_a_session_that_dies_as_soon_as_it_is_up_is_not_handed_out():
    server = MemoryServer(echo=echo)
    async with open_slot(server, stateful=False) as slot:
        await slot.warm()
        server.die()
        await anyio.wait_all_tasks_blocked()
        async with slot.checkout() as session:
            assert session.is_ready
            assert not (await session.call(a_call())).is_error


async def test_closing_while_it_starts_does_not_hang_and_what_comes_up_is_ended_at_once():
    server = holding_back()
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        callers = [Running(tasks, call, slot) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await slot.aclose()
        server.may_open.set()
        for caller in callers:
            assert isinstance(await caller.wait(), HubClosed)
        await anyio.wait_all_tasks_blocked()
        assert server.live == []


async def test_the_end_of_the_owners_while_it_starts_wakes_who_waits():
    server = holding_back()
    async with anyio.create_task_group() as tasks:
        async with open_slot(server) as slot:
            callers = [Running(tasks, call, slot) for _ in range(3)]
            await anyio.wait_all_tasks_blocked()
        for caller in callers:
            assert isinstance(await caller.wait(), HubClosed)
    assert slot.state is SlotState.IDLE


async def test_a_closed_slot_refuses_and_its_calls_in_flight_are_lost():
    pause = Pausing()
    server = MemoryServer(pause=pause)
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        running = Running(tasks, call, slot, "pause")
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await slot.aclose()
        assert isinstance(await running.wait(), SessionLost)
        with pytest.raises(HubClosed):
            await call(slot)
        assert (server.opened, server.live, slot.counters.deaths) == (1, [], 0)


async def test_a_session_in_use_is_not_idle_and_one_that_was_stopped_comes_back():
    pause = Pausing()
    server = MemoryServer(pause=pause, echo=echo)
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        running = Running(tasks, call, slot, "pause")
        await anyio.wait_all_tasks_blocked()
        assert slot.idle_seconds == 0
        assert not await slot.stop_if_idle(0)
        pause.go.set()
        assert (await running.wait()).text == "done"
        assert await slot.stop_if_idle(0)
        assert (slot.state, server.live, slot.counters.deaths) == (SlotState.IDLE, [], 0)
        await call(slot)
        assert server.opened == 2


async def test_a_slot_that_never_started_or_is_starting_has_nothing_to_stop():
    server = holding_back()
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        assert not await slot.stop_if_idle(0)
        waiter = Running(tasks, call, slot)
        await anyio.wait_all_tasks_blocked()
        assert not await slot.stop_if_idle(0)
        server.may_open.set()
        assert not (await waiter.wait()).is_error


async def test_starts_wait_for_a_permit():
    server = holding_back()
    async with open_slot(server) as slot, open_slot(server) as other, anyio.create_task_group() as tasks:
        other._starts = slot._starts = StartLimiter(1)
        callers = [Running(tasks, call, each) for each in (slot, other)]
        await anyio.wait_all_tasks_blocked()
        assert server.opened == 1
        server.may_open.set()
        for caller in callers:
            assert not (await caller.wait()).is_error
        assert server.opened == 2
