"""The prediction of a prefill's time follows what was observed, and outliers do not move it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from toolhub_agent.kv_hints.estimates import PrefillTimeEstimator, estimate_ttft

pytestmark = pytest.mark.quick


def observed(*requests: tuple[int, int, float]) -> PrefillTimeEstimator:
    cost = PrefillTimeEstimator()
    for tokens, cached, seconds in requests:
        cost.observe(tokens, cached, seconds)
    return cost


@pytest.mark.parametrize("stuck", [0, 8])
def test_requests_that_were_stuck_in_a_queue_do_not_change_the_prediction(stuck):
    cost = observed(
        *[(tokens, 0, tokens / 10_000) for tokens in range(500, 30_000, 500)][-40:], *[(2_000, 0, 60.0)] * stuck
    )
    assert cost.seconds(20_000) == pytest.approx(2.0)


def test_cached_tokens_cost_nothing():
    cost = observed((4_000, 2_000, 1.0))
    assert cost.seconds(4_000) == pytest.approx(2.0)
    assert cost.seconds(20_000, 18_000) == pytest.approx(1.0) and cost.seconds(4_000, 5_000) == 0


def test_a_prompt_that_was_nearly_all_cached_says_nothing_about_a_prefill():
    assert repr(observed((20_000, 19_990, 0.3))) == repr(PrefillTimeEstimator())


def test_before_anything_was_seen_a_long_prompt_takes_longer_than_a_short_one():
    assert 0 < PrefillTimeEstimator().seconds(1_000) < PrefillTimeEstimator().seconds(50_000)


def test_only_the_latest_requests_count():
    cost = observed(*[(5_000, 0, seconds) for seconds in [9.0] * 200 + [1.0] * 100])
    assert cost.seconds(5_000) == pytest.approx(1.0)


def test_most_of_a_whole_answer_s_time_is_writing():
    assert estimate_ttft(read=4000, written=400, seconds=12) == pytest.approx(2)


@given(st.integers(-5, 10**6), st.integers(0, 10**6), st.floats(0, 600))
@example(359, 0, 365.65340041753893)
def test_the_time_to_the_first_token_is_never_more_than_all_of_it(read, written, seconds):
    assert 0 <= estimate_ttft(read=read, written=written, seconds=seconds) <= seconds
