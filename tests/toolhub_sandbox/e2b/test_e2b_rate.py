"""The pace of creations: pure rules first, then the queue in virtual time."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_sandbox.e2b.backend import SLOWEST_PER_SECOND, CreationLimiter, CreationRate
from trio.testing import MockClock


def test_creations_are_evenly_spaced():
    rate = CreationRate(per_second=4)
    assert rate.wait_s(100.0) == 0
    rate.take(100.0)
    assert rate.wait_s(100.0) == pytest.approx(0.25)
    assert rate.wait_s(100.25) == 0


def test_a_refusal_halves_the_rate_and_each_success_adds_a_tenth():
    rate = CreationRate(per_second=4)
    rate.refuse(10.0, started=9.0)
    assert rate.current == 2
    rate.accept()
    assert rate.current == pytest.approx(2.4)


def test_refusals_of_creations_that_were_already_on_their_way_count_once():
    rate = CreationRate(per_second=8)
    for _ in range(5):
        rate.refuse(10.0, started=9.0)
    assert rate.current == 4
    rate.refuse(12.0, started=11.0)
    assert rate.current == 2


def test_the_service_may_ask_for_a_longer_break():
    rate = CreationRate(per_second=4)
    rate.refuse(10.0, started=9.0, retry_after=30)
    assert rate.wait_s(10.0) == 30


@given(st.lists(st.booleans(), max_size=200), st.floats(0.001, 50))
def test_the_rate_stays_between_its_bounds(steps, per_second):
    rate, now = CreationRate(per_second), 0.0
    for worked in steps:
        now += 1
        rate.accept() if worked else rate.refuse(now, started=now)
        assert min(per_second, SLOWEST_PER_SECOND) <= rate.current <= per_second


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})])
async def test_turns_are_given_in_order_and_a_refusal_delays_those_who_wait():
    pace, turns = CreationLimiter(CreationRate(per_second=1)), []
    begin = anyio.current_time()

    async def take(name: str) -> None:
        await pace.acquire()
        turns.append((name, round(anyio.current_time() - begin)))

    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(take, name)
            await anyio.wait_all_tasks_blocked()
        pace.refused(started=begin)  # half as fast from here
    assert turns == [("a", 0), ("b", 2), ("c", 4)]
