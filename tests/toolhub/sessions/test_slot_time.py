"""Backoff, restart intensity, giving up and cooling down, in virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from in_memory_hub import call, echo, open_slot, virtual_time
from running import Running

from toolhub.channel.memory import MemoryServer
from toolhub.errors import CircuitOpen, StartError
from toolhub.limits.start_limiter import StartLimiter
from toolhub.sessions.lifecycle import SlotState

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


class Timed(MemoryServer):
    """Notes when it was opened; `broken` makes every opening fail."""

    def __init__(self) -> None:
        super().__init__(echo=echo)
        self.times: list[float] = []
        self.broken = False

    @asynccontextmanager
    async def open(self, *_):
        self.times.append(anyio.current_time())
        if self.broken:
            self.fail_next = [f"broken {len(self.times)}"]
        async with super().open() as channel:
            yield channel


async def die(server: MemoryServer) -> None:
    server.die()
    await anyio.wait_all_tasks_blocked()


async def give_up(server: Timed, slot) -> None:
    """Let starts fail until the slot has had enough."""
    server.broken = True
    while slot.state is not SlotState.CIRCUIT_OPEN:
        with pytest.raises(StartError):
            await call(slot)


async def test_the_first_restart_is_immediate_and_the_next_ones_wait_longer():
    server = Timed()
    server.broken = True
    async with open_slot(server, restart={"max_deaths": 9, "backoff_s": 1, "max_backoff_s": 3}) as slot:
        for _ in range(6):
            with pytest.raises(StartError):
                await call(slot)
    waits = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert waits[0] == 0
    for waited, ceiling in zip(waits[1:], [1, 2, 3, 3], strict=True):
        assert ceiling / 2 <= waited <= ceiling


async def test_deaths_far_apart_never_add_up():
    server = Timed()
    async with open_slot(server, stateful=False, restart={"max_deaths": 1, "window_s": 60}) as slot:
        for _ in range(5):
            await call(slot)
            await die(server)
            await anyio.sleep(61)
        before = anyio.current_time()
        await call(slot)
        assert (server.opened, anyio.current_time()) == (6, before)


async def test_more_deaths_than_allowed_in_the_window_give_the_server_up():
    server = Timed()
    async with open_slot(server, stateful=False, restart={"max_deaths": 3}) as slot:
        for _ in range(4):
            assert slot.state is not SlotState.CIRCUIT_OPEN
            await call(slot)
            await die(server)
        assert slot.state is SlotState.CIRCUIT_OPEN


async def test_a_server_given_up_fails_calls_at_once_and_quotes_the_last_error():
    server = Timed()
    async with open_slot(server, restart={"max_deaths": 2, "cooldown_s": 60}) as slot:
        await give_up(server, slot)
        before = anyio.current_time()
        with pytest.raises(CircuitOpen, match=r"after 3 deaths; one more start is tried in 60 s.*broken 3") as caught:
            await call(slot)
        assert (caught.value.deaths, caught.value.sent, anyio.current_time()) == (3, "no", before)
        assert (len(server.times), slot.in_use) == (3, 0)


async def test_the_caller_whose_start_was_the_last_is_told_its_error_not_the_verdict():
    server = Timed()
    server.broken = True
    async with open_slot(server, restart={"max_deaths": 1}) as slot:
        for _ in range(2):
            with pytest.raises(StartError, match="broken"):
                await call(slot)
        assert slot.state is SlotState.CIRCUIT_OPEN


async def test_after_the_cool_down_one_more_start_is_tried():
    server = Timed()
    async with open_slot(server, restart={"max_deaths": 1, "cooldown_s": 60}) as slot:
        await give_up(server, slot)
        server.broken = False
        await anyio.sleep(59)
        with pytest.raises(CircuitOpen, match="tried in 1 s"):
            await call(slot)
        await anyio.sleep(1)
        assert not (await call(slot)).is_error
        assert slot.state is SlotState.LIVE


async def test_a_start_that_fails_after_the_cool_down_gives_up_again():
    server = Timed()
    async with open_slot(server, restart={"max_deaths": 3, "cooldown_s": 60}) as slot:
        await give_up(server, slot)
        tried = len(server.times)
        await anyio.sleep(61)
        with pytest.raises(StartError):
            await call(slot)
        with pytest.raises(CircuitOpen):
            await call(slot)
        assert len(server.times) == tried + 1


async def test_a_server_that_came_back_after_the_cool_down_may_die_as_often_as_before():
    server = Timed()
    async with open_slot(server, stateful=False, restart={"max_deaths": 2, "cooldown_s": 60}) as slot:
        await give_up(server, slot)
        server.broken = False
        await anyio.sleep(61)
        for _ in range(2):
            await call(slot)
            await die(server)
        assert not (await call(slot)).is_error


async def test_without_a_cool_down_it_is_given_up_for_good():
    server = Timed()
    async with open_slot(server, restart={"max_deaths": 1, "cooldown_s": None}) as slot:
        await give_up(server, slot)
        server.broken = False
        await anyio.sleep(1e6)
        with pytest.raises(CircuitOpen, match=r"2 deaths\. Last"):
            await call(slot)


async def test_a_wait_for_backoff_holds_no_start_permit():
    server, other = Timed(), Timed()
    async with open_slot(server, restart={"backoff_s": 5, "max_deaths": 9}) as slot, open_slot(other) as neighbour:
        neighbour._starts = slot._starts = StartLimiter(1)
        server.broken = True
        for _ in range(2):
            with pytest.raises(StartError):
                await call(slot)
        async with anyio.create_task_group() as tasks:
            waiting = Running(tasks, call, slot)
            await anyio.wait_all_tasks_blocked()
            before = anyio.current_time()
            await call(neighbour)
            assert anyio.current_time() == before
            waiting.cancel()


async def test_a_start_long_after_the_last_death_does_not_wait_for_it():
    server = Timed()
    async with open_slot(server, stateful=False, restart={"backoff_s": 5}) as slot:
        for _ in range(2):
            await call(slot)
            await die(server)
        await call(slot)
        await anyio.sleep(3600)
        assert await slot.stop_if_idle(600)
        before = anyio.current_time()
        await call(slot)
        assert anyio.current_time() == before


async def test_the_time_a_start_took_is_told_without_the_backoff():
    class Slow(Timed):
        @asynccontextmanager
        async def open(self, *_):
            await anyio.sleep(2)
            async with super().open() as channel:
                yield channel

    server = Slow()
    async with open_slot(server, stateful=False, restart={"backoff_s": 4}) as slot:
        for _ in range(3):
            await call(slot)
            await die(server)
        await call(slot)
        assert slot.start_seconds == pytest.approx(2)
