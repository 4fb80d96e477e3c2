"""Continuum's retention time: its formula, its cold start, its choice of distribution."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.kv_hints.policy import (
    DEFAULT_TTL_S,
    MIN_RECORDS,
    bootstrap_ttl,
    optimal_ttl,
    p90_ttl,
    request_count_correlation,
    retention_ttl,
)

pytestmark = pytest.mark.quick

DURATIONS = st.lists(st.floats(0, 1000), max_size=40)
FOREVER = math.inf


@pytest.mark.parametrize(("benefit", "ttl"), [(3, math.log(3)), (1, 0.0), (0.5, 0.0), (0, 0.0), (math.e, 1.0)])
def test_while_little_is_known_it_is_the_logarithm_of_the_benefit_and_never_negative(benefit, ttl):
    assert bootstrap_ttl(benefit) == pytest.approx(ttl)
    assert retention_ttl([], [9.0] * MIN_RECORDS, benefit, longest=FOREVER) == pytest.approx(ttl)


@given(DURATIONS, st.floats(0, 1000))
def test_no_other_time_is_worth_more(durations, benefit):
    def value(ttl: float) -> float:
        in_time = sum(duration <= ttl for duration in durations) / len(durations) if durations else 0
        return in_time * benefit - ttl

    best = optimal_ttl(durations, benefit)
    assert value(best) >= max(value(ttl) for ttl in [0.0, *durations, 0.5, 77.0]) - 1e-9


def test_a_tool_with_enough_records_is_judged_by_its_own_and_another_by_all():
    everything = [1.0] * (MIN_RECORDS + 1)
    assert retention_ttl([5.0] * (MIN_RECORDS + 1), everything, 10, longest=FOREVER) == 5.0
    assert retention_ttl([5.0] * MIN_RECORDS, everything, 10, longest=FOREVER) == 1.0


def test_tools_slower_than_what_is_gained_are_not_waited_for():
    assert retention_ttl([], [30.0] * (MIN_RECORDS + 1), 10, longest=FOREVER) == 0.0


def test_no_retention_is_longer_than_allowed():
    assert retention_ttl([], [30.0] * (MIN_RECORDS + 1), 100, longest=12) == 12


def test_programs_of_one_length_have_memory_one_and_without_programs_there_is_none():
    assert request_count_correlation([7, 7, 7]) == pytest.approx(1.0)
    assert request_count_correlation([]) == request_count_correlation([1]) == 0.0


def test_programs_of_geometric_length_have_next_to_no_memory():
    lengths = [n for n in range(1, 12) for _ in range(2 ** (11 - n))]
    assert request_count_correlation(lengths) < 0.1


def test_where_keeping_costs_nothing_a_prefix_is_kept_for_nearly_every_tool():
    durations = [float(second) for second in range(1, 11)]
    assert p90_ttl(durations, margin=0.5, longest=120) == 10 * 1.5 + 0.5
    assert p90_ttl([2.0] * 20, margin=0.5, longest=120) == 3.5
    assert p90_ttl(durations, margin=0.5, longest=5) == 5
    assert p90_ttl([], margin=0.5, longest=120) == DEFAULT_TTL_S
