"""The rules that need only a clock value."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub.limits.backoff import Backoff, RestartIntensity, RetryBudget

pytestmark = pytest.mark.quick

gaps = st.lists(st.floats(0, 100), max_size=60)


@given(
    initial=st.floats(0.001, 10),
    maximum=st.floats(0.001, 100),
    factor=st.floats(1, 10),
    attempt=st.integers(1, 10_000),
    seed=st.integers(),
)
def test_a_backoff_lies_in_the_upper_half_below_its_ceiling(initial, maximum, factor, attempt, seed):
    ceiling = min(maximum, initial * factor ** min(attempt - 1, 64))
    delay = Backoff(initial, maximum, factor).delay(attempt, rng=random.Random(seed))
    assert ceiling / 2 <= delay <= ceiling


@given(st.integers(max_value=0))
def test_the_first_attempt_does_not_wait(attempt):
    assert Backoff(initial=5).delay(attempt) == 0.0


@given(st.integers(1, 60), st.integers())
def test_the_ceiling_doubles_until_the_maximum(attempt, seed):
    rule = Backoff(initial=0.1, maximum=5.0)
    now, later = (rule.delay(n, rng=random.Random(seed)) for n in (attempt, attempt + 1))
    assert later == pytest.approx(2 * now) if 0.1 * 2**attempt <= 5.0 else later <= 5.0


def test_slots_that_died_together_do_not_return_together():
    rng = random.Random(0)
    assert len({Backoff().delay(3, rng=rng) for _ in range(60)}) == 60


@given(gaps, st.integers(1, 5), st.floats(0.1, 200))
def test_a_start_is_allowed_exactly_while_the_window_holds_few_enough_deaths(gaps, max_deaths, window):
    rule, deaths, now = RestartIntensity(max_deaths, window), [], 0.0
    for gap in gaps:
        now += gap
        deaths.append(now)
        within = sum(death > now - window for death in deaths)
        assert rule.record(now) is (within <= max_deaths)
        assert rule.recent(now) == within


def test_old_deaths_are_forgotten_at_the_end_of_the_window():
    rule = RestartIntensity(max_deaths=1, window=60)
    assert rule.record(0.0)
    assert rule.recent(59.9) == 1
    assert rule.recent(60.0) == 0


def test_a_reset_forgets_every_death():
    rule = RestartIntensity(max_deaths=1, window=60)
    rule.record(0.0)
    rule.reset()
    assert rule.record(1.0)


@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1), st.floats(0, 20))
def test_replays_never_exceed_the_ratio_of_calls_plus_the_reserve(steps, ratio, reserve):
    budget = RetryBudget(ratio, reserve)
    calls = retries = 0
    for is_call in steps:
        if is_call:
            budget.deposit()
            calls += 1
        else:
            retries += budget.withdraw()
        assert retries <= ratio * calls + reserve + 1e-9


def test_an_empty_budget_refills_with_calls():
    budget = RetryBudget(ratio=0.25, reserve=1.0)
    assert budget.withdraw()
    assert not budget.withdraw()
    for _ in range(4):
        budget.deposit()
    assert budget.withdraw()
    assert not budget.withdraw()


def test_a_quiet_week_does_not_save_up_for_an_endless_storm():
    budget = RetryBudget(ratio=0.2, reserve=10.0)
    for _ in range(100_000):
        budget.deposit()
    assert sum(budget.withdraw() for _ in range(1000)) == 110
