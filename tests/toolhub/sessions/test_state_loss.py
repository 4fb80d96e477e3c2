"""A new incarnation of a server that remembers things is never silent: it is told, once."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from in_memory_hub import Pausing, a_call, a_hub, call, echo, open_slot
from running import Running

from toolhub.channel.base import ChannelClosed
from toolhub.channel.memory import MemoryServer
from toolhub.errors import SessionLost
from toolhub.sessions.lifecycle import SlotState

pytestmark = pytest.mark.anyio


async def idle_death(server: MemoryServer) -> None:
    server.die()
    await anyio.wait_all_tasks_blocked()


async def test_a_death_between_calls_is_told_to_the_next_call_only():
    server = MemoryServer(echo=echo)
    async with open_slot(server) as slot:
        await call(slot)
        await idle_death(server)
        with pytest.raises(SessionLost, match=r"died between calls .* nothing was sent") as caught:
            await call(slot)
        assert (caught.value.state_lost, caught.value.sent, slot.in_use) == (True, "no", 0)
        assert not (await call(slot)).is_error


async def test_of_many_callers_after_a_death_one_is_told():
    server = MemoryServer(echo=echo)
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        await call(slot)
        await idle_death(server)
        outcomes = [await caller.wait() for caller in [Running(tasks, call, slot) for _ in range(8)]]
        assert sum(isinstance(outcome, SessionLost) for outcome in outcomes) == 1


async def test_a_death_in_flight_is_told_to_those_callers_and_not_to_the_next():
    server = MemoryServer(echo=echo, pause=Pausing())
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        callers = [Running(tasks, call, slot, "pause") for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        server.die()
        for caller in callers:
            error = await caller.wait()
            assert isinstance(error, SessionLost)
            assert (error.state_lost, error.sent) == (True, "maybe")
        assert not (await call(slot)).is_error


async def test_every_death_is_told():
    server = MemoryServer(echo=echo)
    async with open_slot(server, restart={"backoff_s": 0}) as slot:
        for _ in range(3):
            await call(slot)
            await idle_death(server)
            with pytest.raises(SessionLost):
                await call(slot)
        assert not (await call(slot)).is_error


async def test_a_server_that_remembers_nothing_dies_unmentioned():
    server = MemoryServer(echo=echo, pause=Pausing())
    async with open_slot(server, stateful=False) as slot, anyio.create_task_group() as tasks:
        await call(slot)
        await idle_death(server)
        assert not (await call(slot)).is_error
        in_flight = Running(tasks, call, slot, "pause")
        await anyio.wait_all_tasks_blocked()
        server.die()
        assert (await in_flight.wait()).state_lost is False


async def test_a_server_that_was_never_called_has_nothing_to_lose():
    server = MemoryServer(echo=echo)
    async with open_slot(server) as slot:
        await slot.warm()
        await idle_death(server)
        assert not (await call(slot)).is_error


async def test_a_session_stopped_for_idleness_is_not_a_death():
    server = MemoryServer(echo=echo)
    async with open_slot(server, idle_s=1) as slot:
        await call(slot)
        assert await slot.stop_if_idle(0)
        assert not (await call(slot)).is_error


async def test_the_loss_is_told_even_if_the_caller_in_flight_was_cancelled():
    server = MemoryServer(echo=echo, pause=Pausing())
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        caller = Running(tasks, call, slot, "pause")
        await anyio.wait_all_tasks_blocked()
        server.die()
        caller.cancel()  # its deadline passed in the same moment: it cannot be told
        assert await caller.wait() is None
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(SessionLost) as caught:
            await call(slot)
        assert caught.value.state_lost


async def test_a_call_that_comes_while_callers_in_flight_are_being_told_is_not_told_too():
    class SlowToDie(MemoryServer):
        @asynccontextmanager
        async def open(self, *_):
            async with super().open() as channel:
                yield channel
                with anyio.CancelScope(shield=True):
                    await buried.wait()

    server, buried = SlowToDie(echo=echo, pause=Pausing()), anyio.Event()
    async with open_slot(server) as slot, anyio.create_task_group() as tasks:
        in_flight = Running(tasks, call, slot, "pause")
        await anyio.wait_all_tasks_blocked()
        server.die()
        await anyio.lowlevel.checkpoint()
        while slot.state is SlotState.LIVE:
            await anyio.lowlevel.checkpoint()
        next_one = Running(tasks, call, slot)
        assert (await in_flight.wait()).state_lost
        buried.set()
        assert not isinstance(await next_one.wait(), SessionLost)


async def test_a_loss_that_nobody_was_told_survives_another_death():
    server = MemoryServer(echo=echo)
    async with open_slot(server) as slot:
        await call(slot)
        await idle_death(server)
        await slot.warm()
        await idle_death(server)
        with pytest.raises(SessionLost) as caught:
            await call(slot)
        assert caught.value.state_lost


async def test_the_loss_is_told_even_if_the_call_that_met_it_was_not_sent():
    """An HTTP server that was restarted refuses the session it no longer knows."""
    server = MemoryServer(echo=echo)

    async def refuse(*args, **keys):
        server.die()
        raise ChannelClosed("session not found", sent="no")

    async with a_hub(server) as hub, hub.task() as task:
        await task.call("memory", "echo")
        server.live[0].request = refuse
        with pytest.raises(SessionLost) as caught:
            await task.call("memory", "echo")
        assert (caught.value.state_lost, caught.value.sent) == (True, "no")
        assert not (await task.call("memory", "echo")).is_error


async def test_a_first_call_that_was_not_sent_loses_nothing_and_is_repeated():
    server = MemoryServer(echo=echo)

    async def refuse(*args, **keys):
        server.die()
        await anyio.wait_all_tasks_blocked()  # the slot has heard of the death before the caller does
        raise ChannelClosed("session not found", sent="no")

    async with a_hub(server) as hub, hub.task() as task:
        await task.warm()
        server.live[0].request = refuse
        assert not (await task.call("memory", "echo")).is_error
        assert (hub.retries, server.opened) == (1, 2)


async def test_listing_tools_neither_fails_nor_uses_up_the_notice():
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub, hub.task() as task:
        await task.call("memory", "echo")
        await idle_death(server)
        assert [tool.name for tool in await task.tools()] == ["echo"]
        with pytest.raises(SessionLost) as caught:
            await task.call("memory", "echo")
        assert caught.value.state_lost


async def test_the_loss_is_not_papered_over_by_a_replay():
    server = MemoryServer(echo=echo)
    keys = {"tools": {"policy": {"echo": {"read_only": True}}}}
    async with a_hub(server, memory=keys) as hub, hub.task() as task:
        await task.call("memory", "echo")
        await idle_death(server)
        with pytest.raises(SessionLost):
            await task.call("memory", "echo")
        assert (hub.retries, server.opened) == (0, 1)


async def test_each_session_s_call_count_starts_at_zero():
    server = MemoryServer(echo=echo)
    async with open_slot(server, restart={"backoff_s": 0}) as slot:
        await call(slot)
        await idle_death(server)
        with pytest.raises(SessionLost):
            await call(slot)
        async with slot.checkout() as session:
            assert session.calls == 0
            await session.call(a_call())
            assert session.calls == 1
