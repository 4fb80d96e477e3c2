"""A limit that finds itself: on backends of every kind, with a simulated clock, and for any history at all."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_backend import Backend, Fixed, Run, refusing_above, simulate, thrashing, workers

from toolhub.limits.adaptive import FIRST_CALLS, LONGEST_PAUSE_S, MOST_TOOLS, AdaptiveLimit

pytestmark = pytest.mark.quick

seeds = pytest.mark.parametrize("seed", [1, 2, 3])


def adaptive(maximum: int = 200, **options: int) -> AdaptiveLimit:
    return AdaptiveLimit(maximum=maximum, **options)


def best_fixed(backend: Callable[[], Backend], **conditions: Any) -> Run:
    runs = [simulate(Fixed(limit), backend(), **conditions) for limit in (4, 8, 12, 16, 20, 28)]
    return max(runs, key=lambda run: run.goodput)


# --- finding the limit ------------------------------------------------------------------------------------------------


@seeds
def test_a_backend_with_a_queue_is_kept_busy_and_its_queue_short(seed: int) -> None:
    run = simulate(adaptive(), workers(lambda now: 16), seconds=60, seed=seed)
    free = simulate(Fixed(10**6), workers(lambda now: 16), seconds=60, seed=seed)
    assert run.goodput >= 0.95 * free.goodput
    assert run.p99 < 0.4 * free.p99
    assert max(run.limits[10:]) < 40


@seeds
def test_a_thrashing_backend_does_nearly_as_much_as_it_can(seed: int) -> None:
    run = simulate(adaptive(), thrashing, seconds=120, base=0.33, seed=seed)
    assert run.goodput >= 0.9 * best_fixed(lambda: thrashing, seconds=120, base=0.33).goodput
    assert run.goodput >= 2 * simulate(Fixed(10**6), thrashing, seconds=120, base=0.33).goodput


@seeds
def test_times_that_scatter_widely_do_not_shrink_the_limit(seed: int) -> None:
    run = simulate(adaptive(), workers(lambda now: 32), seconds=30, sigma=1.0, seed=seed)
    best = simulate(Fixed(32), workers(lambda now: 32), seconds=30, sigma=1.0, seed=seed)
    assert run.goodput >= 0.85 * best.goodput
    assert sum(limit < 8 for limit in run.limits[10:]) <= 3


def test_a_limit_follows_a_backend_that_loses_most_of_its_workers_and_gets_them_back() -> None:
    limit = adaptive()
    run = simulate(limit, workers(lambda now: 4 if 40 <= now < 80 else 16), seconds=120)
    before, during, after = (sorted(run.limits[begin:end]) for begin, end in ((30, 40), (50, 80), (90, 120)))
    assert during[len(during) // 2] < before[len(before) // 2] / 2
    assert after[len(after) // 2] > 0.8 * before[len(before) // 2]
    assert run.goodput >= 0.9 * (80 * 160 + 40 * 40) / 120


def test_a_backend_that_refuses_is_seldom_asked_for_too_much() -> None:
    backend = refusing_above(lambda now: 10)
    run = simulate(adaptive(), backend, seconds=60)
    assert run.goodput >= 0.85 * simulate(Fixed(10), backend, seconds=60).goodput
    assert run.refused <= 10


def test_what_a_backend_refused_once_is_tried_again() -> None:
    run = simulate(adaptive(), refusing_above(lambda now: 10 if now < 20 else 40), seconds=100)
    assert max(run.limits[:20]) <= 13
    assert run.limits[-1] > 30


def test_calls_of_a_slower_tool_are_no_overload() -> None:
    limit = adaptive(maximum=32)
    simulate(
        limit,
        workers(lambda now: 64),
        seconds=120,
        tools=lambda now: [("fast", 1), ("slow", 20)] if now < 20 else [("slow", 20)],
    )
    assert limit.decreases == 0
    assert limit.limit == 32


def test_answers_out_of_a_cache_are_no_measure_for_the_others() -> None:
    caching = [("search", 0.01)] * 9 + [("search", 1.0)]
    best, run = (
        simulate(limit, workers(lambda now: 16), seconds=15, tools=lambda now: caching)
        for limit in (Fixed(16), adaptive())
    )
    assert run.goodput >= 0.85 * best.goodput


@seeds
def test_a_backend_that_is_slower_from_now_on_is_not_held_back_for_it(seed: int) -> None:
    limit = adaptive(maximum=32)
    run = simulate(
        limit, workers(lambda now: 64), seconds=150, base=lambda now: 0.1 if now < 30 else 0.3, sigma=0.5, seed=seed
    )
    assert sum(limit == 32 for limit in run.limits[-30:]) > 20


def test_a_first_call_that_starts_everything_is_not_what_is_usual() -> None:
    limit = adaptive(maximum=32)
    limit.observe("tool", 60.0, 1, 0.0)
    run = simulate(limit, thrashing, seconds=60, base=0.33)
    assert max(run.limits[20:]) < 25


def test_a_call_that_hangs_now_and_then_says_little_about_the_others() -> None:
    limit = adaptive(maximum=32)
    hanging = [("tool", 1.0)] * 49 + [("tool", 300.0)]
    simulate(limit, workers(lambda now: 64), seconds=200, tools=lambda now: hanging)
    assert limit.decreases == 0
    assert limit.ratio < 2


def test_a_limit_that_is_not_reached_does_not_grow() -> None:
    limit = adaptive(initial=12)
    assert set(simulate(limit, workers(lambda now: 16), seconds=30, callers=11).limits) == {12}


def test_slowness_counts_for_what_was_in_flight_not_for_what_might_have_been() -> None:
    limit = adaptive(initial=200)
    simulate(limit, workers(lambda now: 40 if now < 10 else 4), seconds=60, callers=40)
    assert limit.limit < 20


# --- calls that fail --------------------------------------------------------------------------------------------------


def known(limit: AdaptiveLimit, seconds: float = 1.0) -> AdaptiveLimit:
    """The limit, once it knows what is usual."""
    for number in range(FIRST_CALLS + 1):
        limit.observe("tool", seconds, 1, float(number))
    return limit


def test_calls_that_are_given_up_shrink_the_limit() -> None:
    limit = known(adaptive(initial=64))
    for number in range(1000):
        limit.failed("tool", 30.0, limit.limit, 100.0 + number)
    assert limit.limit <= 4


@pytest.mark.parametrize(("tool", "seconds"), [("tool", 1.2), ("never seen", 30.0), ("tool", math.nan)])
def test_a_call_that_was_not_given_its_time_says_nothing(tool: str, seconds: float) -> None:
    limit = known(adaptive(initial=64))
    for number in range(1000):
        limit.failed(tool, seconds, 64, 100.0 + number)
    assert limit.limit == 64


def test_a_crowd_refused_at_once_shrinks_the_limit_once() -> None:
    limit = adaptive(initial=100)
    for _ in range(50):
        limit.overloaded(10.0, None)
    assert limit.limit == 70
    assert limit.overloads == 50 and limit.decreases == 1


def test_a_limit_is_cut_from_what_was_in_flight_when_that_is_known() -> None:
    limit = adaptive(initial=100)
    limit.overloaded(10.0, None, 20)
    assert limit.limit == 14


def test_refusals_of_later_calls_shrink_the_limit_to_its_minimum_and_no_further() -> None:
    limit = adaptive(initial=100, minimum=2)
    for number in range(50):
        limit.overloaded(100.0 * number, None)
    assert limit.limit == 2


def test_a_pause_is_over_when_a_call_ends_after_it() -> None:
    limit = adaptive()
    limit.overloaded(10.0, 5.0)
    assert limit.paused_until == limit.paused_until == 15.0
    limit.observe("tool", 1.0, 1, 14.0)
    assert limit.paused_until == 15.0
    limit.observe("tool", 1.0, 1, 15.0)
    assert limit.paused_until == 0.0


@pytest.mark.parametrize("nonsense", [None, 0.0, -5.0, math.nan])
def test_what_is_no_time_is_no_pause(nonsense: float | None) -> None:
    limit = adaptive()
    limit.overloaded(10.0, nonsense)
    assert limit.paused_until == 0.0


def test_a_server_with_endless_names_of_tools_costs_bounded_memory() -> None:
    limit = adaptive()
    for number in range(2 * MOST_TOOLS):
        limit.observe(f"tool {number}", 1.0, 1, float(number))
    assert len(limit._baselines) == MOST_TOOLS


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 5), (6, 5)])
def test_bounds_that_leave_nothing_are_refused(minimum: int, maximum: int) -> None:
    with pytest.raises(ValueError, match=f"between {minimum} and {maximum}"):
        AdaptiveLimit(minimum=minimum, maximum=maximum)


# --- any history ------------------------------------------------------------------------------------------------------

anything = st.floats() | st.none()
events = st.tuples(
    st.sampled_from(["observe", "failed", "overloaded"]),
    st.sampled_from(["a", "b"]),
    st.floats(),
    anything,
    st.integers(0, 300),
    st.floats(0, 100),
)
histories = st.lists(st.tuples(events, st.integers(1, 60)), max_size=40)


def play(limit: AdaptiveLimit, history: list[tuple[tuple[str, str, float, float | None, int, float], int]]) -> float:
    """Let it all happen, each event several times; return the time at its end."""
    now = 0.0
    for (kind, tool, seconds, retry_after, in_flight, gap), times in history:
        for _ in range(times):
            now += gap
            if kind == "observe":
                limit.observe(tool, seconds, in_flight, now)
            elif kind == "failed":
                limit.failed(tool, seconds, in_flight, now)
            else:
                limit.overloaded(now, retry_after, in_flight or None)
            assert limit._least <= limit.limit <= limit._most
            assert limit.paused_until <= now + LONGEST_PAUSE_S
    return now


@given(histories, st.integers(1, 5), st.integers(0, 100), st.integers(-3, 300))
def test_the_limit_lies_between_its_bounds_whatever_happens(history, minimum, room, initial):
    limit = AdaptiveLimit(minimum=minimum, maximum=minimum + room, initial=initial)
    play(limit, history)


@given(histories, st.floats(min_value=1e-3))
def test_a_pause_that_was_asked_for_lies_ahead(history, retry_after):
    limit = adaptive()
    now = play(limit, history)
    limit.overloaded(now, retry_after)
    assert now < limit.paused_until <= now + LONGEST_PAUSE_S


@given(histories, st.lists(anything, min_size=1, max_size=5), st.floats(0, 10))
def test_refusals_never_raise_the_limit_and_more_of_them_never_leave_more(history, refusals, gap):
    limit = adaptive()
    now = play(limit, history)
    for retry_after in refusals:
        before, now = copy.deepcopy(limit), now + gap
        limit.overloaded(now, retry_after)
        assert limit.limit <= before.limit
        assert limit.paused_until >= before.paused_until
