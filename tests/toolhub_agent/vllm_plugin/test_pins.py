"""Pins keep blocks, end when they should, and yield in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from toolhub_agent.vllm_plugin.pins import Pins

from tests.toolhub_agent.vllm_plugin.pool_model import Clock, ModelBlock, ModelPool


class Bench:
    """A pool of ten blocks, of which pins may have six."""

    def __init__(self) -> None:
        self.pool = ModelPool(10)
        self.clock = Clock()
        self.pins: Pins[ModelBlock] = Pins(self.pool, cap_blocks=6, clock=self.clock)

    def turn(self, key: str, count: int, *, ttl: float = 10, shared: Sequence[ModelBlock] = ()) -> list[ModelBlock]:
        """A request that begins with shared blocks, takes as many new ones, is pinned, and ends."""
        self.pool.touch(shared)
        taken = self.pool.allocate(count)
        assert taken is not None
        blocks = [*shared, *taken]
        self.pins.hold(key, blocks, ttl)
        self.pool.free_blocks(reversed(blocks))
        return blocks

    def event(self, name: str) -> int:
        return dict(self.pins.statistics().events)[name]  # type: ignore[index]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_pinned_blocks_are_not_free(bench: Bench) -> None:
    blocks = bench.turn("a", 3)
    assert not set(blocks) & set(bench.pool.free)
    assert bench.pool.allocate(8) is None
    assert repr(bench.pins) == "<Pins 1 of 3/6 blocks>"


def test_a_pin_ends_with_its_time_and_not_before(bench: Bench) -> None:
    blocks = bench.turn("a", 3, ttl=10)
    bench.clock.now = 9.9
    bench.pins.expire()
    assert len(bench.pins) == 1
    bench.clock.now = 10
    bench.pins.expire()
    assert len(bench.pins) == 0 and len(bench.pool.free) == 10
    assert bench.pool.free[-3:] == blocks[::-1]  # of a conversation its end is evicted first
    assert bench.event("expired") == 1


def test_a_newer_pin_replaces_the_older(bench: Bench) -> None:
    first = bench.turn("a", 2, ttl=10)
    bench.turn("a", 2, ttl=30, shared=first)
    assert bench.pins.statistics().pins == 1 and bench.pins.statistics().blocks == 4
    bench.clock.now = 20
    bench.pins.expire()
    assert len(bench.pins) == 1 and bench.event("replaced") == 1


def test_a_shorter_newer_pin_gives_back_what_only_the_older_held(bench: Bench) -> None:
    first = bench.turn("a", 4)
    bench.turn("a", 0, shared=first[:1])
    assert bench.pins.statistics().blocks == 1 and len(bench.pool.free) == 9


def test_release_ends_one_session(bench: Bench) -> None:
    bench.turn("a", 2)
    bench.turn("b", 2)
    assert bench.pins.release("a") and not bench.pins.release("a") and not bench.pins.release("unknown")
    assert bench.pins.statistics().blocks == 2 and bench.event("released") == 1


def test_a_shared_block_is_kept_until_its_last_pin_ends(bench: Bench) -> None:
    system = bench.turn("a", 2)
    bench.turn("b", 1, shared=system)
    assert bench.pins.statistics().blocks == 3
    bench.pins.release("a")
    assert not set(system) & set(bench.pool.free)
    bench.pins.release("b")
    assert len(bench.pool.free) == 10


def test_at_the_cap_a_new_pin_is_refused_and_old_ones_stay(bench: Bench) -> None:
    bench.turn("a", 4)
    bench.turn("b", 3)
    assert bench.pins.statistics().blocks == 4 and bench.event("refused") == 1
    bench.turn("c", 2)
    assert bench.pins.statistics().blocks == 6


def test_a_refused_pin_leaves_the_sessions_older_one(bench: Bench) -> None:
    first = bench.turn("a", 4)
    bench.turn("a", 3, shared=first)
    assert bench.pins.statistics().blocks == 4 and bench.event("refused") == 1
    assert not set(first) & set(bench.pool.free)


def test_what_the_older_pin_gives_back_counts_for_the_newer(bench: Bench) -> None:
    bench.turn("a", 5)
    bench.turn("a", 5)
    assert bench.pins.statistics().blocks == 5 and bench.event("refused") == 0


def test_there_are_no_more_pins_than_the_cap_however_few_blocks_they_share(bench: Bench) -> None:
    system = bench.turn("0", 1)
    for number in range(1, 10):
        bench.turn(str(number), 0, shared=system)
    assert len(bench.pins) == 6 and bench.event("refused") == 4


def test_nothing_to_keep_is_no_pin(bench: Bench) -> None:
    bench.turn("a", 0)
    assert len(bench.pins) == 0 and bench.event("refused") == 0


def test_the_pin_that_ends_soonest_yields_first_and_only_as_many_as_needed(bench: Bench) -> None:
    bench.turn("late", 2, ttl=30)
    soon = bench.turn("soon", 2, ttl=10)
    bench.turn("later", 2, ttl=20)
    taken = bench.pins.make_room(lambda: bench.pool.allocate(5))
    assert taken is not None and set(taken) & set(soon)
    assert not bench.pins.release("soon") and bench.pins.release("later") and bench.pins.release("late")
    assert bench.event("yielded") == 1


def test_pins_that_could_not_help_are_kept(bench: Bench) -> None:
    running = bench.pool.allocate(3)
    assert running is not None
    bench.turn("a", 3)
    bench.turn("b", 3)
    held = bench.pins.statistics()
    assert bench.pins.make_room(lambda: bench.pool.allocate(8)) is None
    assert bench.pins.statistics() == held and len(bench.pool.free) == 1
    bench.pool.free_blocks(running)
    assert bench.pins.make_room(lambda: bench.pool.allocate(8)) is not None


def test_pins_that_could_not_help_still_end_in_time(bench: Bench) -> None:
    bench.turn("a", 3, ttl=10)
    assert bench.pins.make_room(lambda: bench.pool.allocate(11)) is None
    bench.clock.now = 10
    bench.pins.expire()
    assert len(bench.pool.free) == 10


def test_a_pin_whose_blocks_are_all_in_use_does_not_yield_in_vain(bench: Bench) -> None:
    used = bench.turn("used", 3, ttl=1)
    bench.pool.touch(used)
    bench.turn("idle", 3, ttl=2)
    assert bench.pins.make_room(lambda: bench.pool.allocate(5)) is not None
    assert bench.pins.release("used") and not bench.pins.release("idle")


def test_pins_of_the_same_blocks_yield_together(bench: Bench) -> None:
    blocks = bench.turn("a", 6)
    bench.turn("b", 0, shared=blocks)
    assert bench.pins.make_room(lambda: bench.pool.allocate(10)) is not None
    assert len(bench.pins) == 0


def test_the_pin_of_who_asks_yields_last(bench: Bench) -> None:
    bench.turn("asks", 3, ttl=1)
    bench.turn("other", 3, ttl=2)
    assert bench.pins.make_room(lambda: bench.pool.allocate(7), last="asks") is not None
    assert bench.pins.release("asks") and not bench.pins.release("other")


def test_a_reset_gives_everything_back(bench: Bench) -> None:
    bench.turn("a", 3)
    bench.turn("b", 3)
    bench.pins.clear()
    assert len(bench.pool.free) == 10 and bench.event("reset") == 2
