"""Tool durations: the tool's own, its server's or all tools'; the slowest of several; a hub's calls."""

from __future__ import annotations

import math
import random

import pytest
from toolhub_agent.kv_hints.estimates import (
    DEFAULT_DURATION_S,
    ENOUGH_DURATIONS,
    MAX_NAMES,
    ToolDurations,
    quantile_of_slowest,
)

from toolhub.model import Call

pytestmark = pytest.mark.quick


def told(**seconds: float) -> ToolDurations:
    """Durations with enough calls of each tool of server `s`."""
    durations = ToolDurations()
    for tool, value in seconds.items():
        for _ in range(ENOUGH_DURATIONS):
            durations.observe("s", tool, value)
    return durations


def a_call(server: str = "s", tool: str = "t") -> Call:
    return Call("1", "task", server, tool, {}, deadline=math.inf, timeout=1)


def test_a_known_tool_is_forecast_by_its_own_durations():
    durations = told(search=1.0, render=9.0)
    assert durations.forecast([("s", "search")]).p50 == 1.0
    assert durations.forecast([("s", "render")]).p90 == 9.0


def test_a_new_tool_is_forecast_by_its_server_and_a_new_server_by_all():
    durations = told(search=1.0)
    for _ in range(ENOUGH_DURATIONS * 3):
        durations.observe("other", "slow", 50.0)
    assert durations.forecast([("s", "new")]).p50 == 1.0
    assert durations.forecast([("unknown", "new")]).p50 == 50.0


def test_before_any_call_there_is_a_guess():
    assert ToolDurations().forecast([("s", "t")]).p50 == DEFAULT_DURATION_S


def test_the_wait_for_several_tools_is_as_long_as_the_slowest():
    durations = told(search=1.0, render=9.0)
    assert durations.forecast([("s", "search"), ("s", "render")]).p50 == 9.0


def test_the_quantile_of_the_slowest_is_that_of_independent_draws():
    chance = random.Random(3)
    samples = [sorted(chance.expovariate(1) for _ in range(200)) for _ in range(3)]
    drawn = sorted(max(chance.choice(each) for each in samples) for _ in range(20_000))
    for quantile in (0.5, 0.9):
        assert quantile_of_slowest(samples, quantile) == pytest.approx(drawn[int(quantile * len(drawn))], rel=0.1)


def test_a_tool_that_became_slow_is_seen_as_slow():
    durations = told(search=1.0)
    for _ in range(1000):
        durations.observe("s", "search", 30.0)
    assert durations.forecast([("s", "search")]).p50 == 30.0


def test_a_hubs_calls_are_learned_unless_they_failed():
    durations = ToolDurations()
    for outcome, seconds in [("ok", 3.0), ("tool_error", 3.0), ("cancelled", 99.0), ("CallTimeout", 99.0)]:
        durations.ended(a_call(), outcome, seconds)
    assert list(durations.of_all()) == [3.0, 3.0]


def test_what_a_hub_measured_is_not_counted_again_when_the_agent_tells_it():
    durations = ToolDurations()
    durations.ended(a_call(), "ok", 3.0)
    durations.observe_reported("s", "t", 3.0)
    durations.observe_reported("elsewhere", "t", 4.0)
    assert list(durations.of_all()) == [3.0, 4.0]


def test_invented_tool_names_do_not_fill_the_memory():
    durations = ToolDurations()
    for number in range(MAX_NAMES + 100):
        durations.observe(f"s{number}", f"t{number}", 1.0)
    assert f"{MAX_NAMES} tools" in repr(durations)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_no_time_is_learned_from_a_broken_clock(seconds):
    durations = ToolDurations()
    durations.observe("s", "t", seconds)
    assert list(durations.of_all()) == []
