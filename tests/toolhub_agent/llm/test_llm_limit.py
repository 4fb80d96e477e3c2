"""The number of slots follows the engine: the rule alone, then against an engine whose clock is the test's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.llm.concurrency import MAX_SLOTS, MIN_SLOTS, START_SLOTS, EngineLoad, SlotLimit, update_limit


@dataclass
class Engine:
    """Runs `capacity` requests; the rest waits. More are always wanted, and half of those that run end per second."""

    capacity: int
    inside: int = 0

    def second(self, limit: SlotLimit) -> SlotLimit:
        running = min(self.inside, self.capacity)
        self.inside -= (running + 1) // 2
        self.inside = max(self.inside, limit.slots)
        return update_limit(limit, self.reading(), in_use=self.inside, target_waiting=2)

    def reading(self) -> EngineLoad:
        return EngineLoad(max(0, self.inside - self.capacity), min(self.inside, self.capacity))


def settle(engine: Engine, seconds: int = 200) -> list[int]:
    """The slots in each of the last 50 seconds."""
    limit, seen = SlotLimit(), []
    for _ in range(seconds):
        limit = engine.second(limit)
        seen.append(limit.slots)
    return seen[-50:]


@pytest.mark.parametrize("capacity", [4, 30, 64, 256])
def test_the_slots_settle_round_what_the_engine_runs(capacity):
    slots = settle(Engine(capacity))
    assert capacity * 0.7 <= sum(slots) / len(slots) <= capacity + 4


def test_without_a_queue_and_with_free_slots_nothing_changes():
    assert update_limit(SlotLimit(64), EngineLoad(0, 10), in_use=10, target_waiting=2) == SlotLimit(64)


def test_a_queue_within_the_target_neither_cuts_nor_grows():
    assert update_limit(SlotLimit(64), EngineLoad(2, 64), in_use=64, target_waiting=2) == SlotLimit(64)


def test_a_full_cache_stops_growth():
    assert update_limit(SlotLimit(64), EngineLoad(0, 64, 0.97), in_use=64, target_waiting=2) == SlotLimit(64)


def test_one_queue_is_answered_by_one_cut():
    cut = update_limit(SlotLimit(64), EngineLoad(30, 34), in_use=64, target_waiting=2)
    assert cut == SlotLimit(48, is_probing=False)
    assert update_limit(cut, EngineLoad(25, 34), in_use=60, target_waiting=2) == cut


def test_growth_is_fast_until_the_first_queue_and_by_one_after_it():
    assert update_limit(SlotLimit(64), EngineLoad(0, 64), in_use=64, target_waiting=2) == SlotLimit(80)
    assert update_limit(SlotLimit(64, False), EngineLoad(0, 64), in_use=64, target_waiting=2) == SlotLimit(65, False)


def test_an_engine_that_tells_nothing_gets_the_start_value():
    assert update_limit(SlotLimit(7, False), None, in_use=7, target_waiting=2) == SlotLimit(START_SLOTS, True)


@given(
    st.builds(SlotLimit, st.integers(MIN_SLOTS, MAX_SLOTS), st.booleans()),
    st.builds(EngineLoad, st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1)),
    st.integers(0, 2000),
)
def test_the_slots_stay_within_their_bounds(limit, reading, in_use):
    assert MIN_SLOTS <= update_limit(limit, reading, in_use=in_use, target_waiting=2).slots <= MAX_SLOTS
