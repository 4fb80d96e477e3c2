"""When a prefetch is sent, and when not: pure rules."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.kv_hints.estimates import WaitForecast
from toolhub_agent.kv_hints.policy import PrefetchPlan, SkipReason, is_cached, plan_prefetch, reason_to_skip

pytestmark = pytest.mark.quick

USUAL = WaitForecast(p50=10, p90=20)
SECONDS = st.floats(0, 1000)


def refused(**changed) -> SkipReason | None:
    usual: dict[str, Any] = {"prefix_tokens": 8000, "min_prefix_tokens": 2000, "new_tokens": 0, "recent": ()}
    return reason_to_skip(**(usual | {"load": 0, "max_load": 8} | changed))


def test_it_goes_out_just_before_the_tools_are_expected():
    assert plan_prefetch(0, USUAL, 3, is_prefetched=False) == PrefetchPlan(7, prefetch=True)


def test_tools_that_return_sooner_than_a_prefetch_are_only_looked_at_again_when_late():
    assert plan_prefetch(0, USUAL, 11, is_prefetched=False) == PrefetchPlan(10, prefetch=False)


def test_after_a_prefetch_there_is_no_second_before_nine_of_ten_would_be_back():
    assert plan_prefetch(9, USUAL, 3, is_prefetched=True) == PrefetchPlan(20, prefetch=False)


def test_late_tools_are_expected_to_take_as_long_again():
    assert plan_prefetch(20, USUAL, 3, is_prefetched=True) == PrefetchPlan(37, prefetch=True)


def test_prefetches_for_tools_that_do_not_return_come_at_least_nearly_twice_as_late_each_time():
    now, sent = 20.0, []
    while len(sent) < 6:
        found = plan_prefetch(now, USUAL, 3, is_prefetched=True)
        now = found.at
        if found.prefetch:
            sent.append(now)
    assert all(later >= 2 * sooner - 3 for sooner, later in pairwise(sent))


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.booleans())
def test_a_plan_is_never_for_the_past_and_a_prefetch_always_has_its_time(now, p50, more, needed, prefetched):
    found = plan_prefetch(now, WaitForecast(p50, p50 + more), needed, is_prefetched=prefetched)
    assert found.at >= now - 1e-9
    if not found.prefetch:
        assert found.at > now


def test_short_prefixes_and_busy_endpoints_get_none():
    assert refused() is None
    assert refused(prefix_tokens=1999) is SkipReason.SHORT_PREFIX
    assert refused(load=9) is SkipReason.LOADED


def test_a_session_from_which_nothing_is_evicted_gets_none_unless_there_are_results_to_prefill():
    assert refused(recent=(True, True)) is SkipReason.CACHED
    assert refused(recent=(True, False)) is None
    assert refused(recent=(True,)) is None
    assert refused(recent=(True, True), new_tokens=4000) is None


@pytest.mark.parametrize(
    ("found", "reusable", "cached"),
    [(9_900, 10_000, True), (9_600, 10_000, False), (1_800, 2_000, True), (0, 300, False)],
)
def test_a_block_less_is_no_eviction_and_a_fiftieth_is_none(found, reusable, cached):
    assert is_cached(found, reusable) is cached
