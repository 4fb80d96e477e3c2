"""The prediction of a prefill's time follows what was observed, and outliers do not move it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.kv_hints.estimates import PrefillTimeEstimator

pytestmark = pytest.mark.quick

A, B, C = 0.05, 0.08, 0.004
REQUEST = st.tuples(st.integers(1, 200_000), st.floats(0, 1), st.floats(0, 600))


def true_seconds(tokens: int, cached: int) -> float:
    return A + B * (tokens - cached) / 1000 + C * (tokens / 1000) ** 2


def observed(*, outliers: int = 0) -> PrefillTimeEstimator:
    chance, cost = random.Random(7), PrefillTimeEstimator()
    for _ in range(40):
        tokens = chance.randrange(500, 30_000)
        cached = chance.choice([0, tokens // 2, tokens * 9 // 10])
        cost.observe(tokens, cached, true_seconds(tokens, cached))
    for _ in range(outliers):
        cost.observe(chance.randrange(500, 30_000), 0, 60.0)
    return cost


@pytest.mark.parametrize("outliers", [0, 8])
def test_it_finds_the_law_behind_the_times_even_when_some_requests_were_stuck_in_a_queue(outliers):
    cost = observed(outliers=outliers)
    for tokens, cached in [(4_000, 0), (20_000, 0), (20_000, 19_000)]:
        assert cost.seconds(tokens, cached) == pytest.approx(true_seconds(tokens, cached), rel=0.05)


@given(st.lists(REQUEST, max_size=12))
def test_no_coefficient_is_ever_negative(requests):
    cost = PrefillTimeEstimator()
    for tokens, share, seconds in requests:
        cost.observe(tokens, int(tokens * share), seconds)
    assert all(coefficient >= 0 for coefficient in cost.coefficients)


def test_after_one_request_it_predicts_in_proportion():
    cost = PrefillTimeEstimator()
    cost.observe(2_000, 0, 0.5)
    assert cost.seconds(8_000) == pytest.approx(2.0)


def test_before_anything_was_seen_a_long_prompt_takes_longer_than_a_short_one():
    assert 0 < PrefillTimeEstimator().seconds(1_000) < PrefillTimeEstimator().seconds(50_000)


def test_equal_requests_do_not_break_the_fit():
    cost = PrefillTimeEstimator()
    for _ in range(10):
        cost.observe(5_000, 0, 1.0)
    assert cost.seconds(5_000) == pytest.approx(1.0)


def test_only_the_latest_requests_count():
    cost = PrefillTimeEstimator()
    for seconds in [9.0] * 200 + [1.0] * 100:
        cost.observe(5_000, 0, seconds)
    assert cost.seconds(5_000) == pytest.approx(1.0)
