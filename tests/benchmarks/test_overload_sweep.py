"""The benchmarks of overload and of long sweeps: their models, and both end to end with as little work as they can."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.common.leak_watch import HubHistory, HubSample, least_squares
from benchmarks.common.result import Outcome
from benchmarks.overload import benchmark as overload
from benchmarks.overload.load import OPEN, OURS, VARIANTS, LoadResult, jain
from benchmarks.overload.slow_service import ALONE_S, AT_ONCE, BUSY_S, ProcessorSharing, fitted_k
from benchmarks.report.check import ratios
from benchmarks.sweep import benchmark as sweep
from tests.benchmarks.tiny_loads import TINY_OVERLOAD, TINY_SWEEP

NOTHING_ELSE = {"late": 0, "expired": 0, "refusals": 0, "given_up": 0}


def ends(sharing: ProcessorSharing) -> list[tuple[Any, float]]:
    """When each is finished if nobody else comes, to the millisecond."""
    found = []
    while (end := sharing.next_end()) is not None:
        found += [(key, round(end, 3)) for key in sharing.finished(end)]
    return found


# --- the service ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0])
def test_the_curve_goes_through_both_known_points(p: float) -> None:
    sharing = ProcessorSharing(fitted_k(p), p)
    sharing.enter(0, ALONE_S, now=0)
    assert sharing.next_end() == pytest.approx(ALONE_S)
    for key in range(1, AT_ONCE):
        sharing.enter(key, ALONE_S, now=0)
    assert sharing.next_end() == pytest.approx(BUSY_S)


def test_equal_requests_end_together_and_the_smaller_one_first() -> None:
    sharing = ProcessorSharing(k=1.0, p=1.0)
    for key, work_s in (("large", 2.0), ("small", 1.0), ("equal", 1.0)):
        sharing.enter(key, work_s, now=0)
    # Three at a third of the speed, then one alone.
    assert ends(sharing) == [("equal", 3.0), ("small", 3.0), ("large", 4.0)]


def test_who_comes_later_slows_down_those_that_are_there() -> None:
    sharing = ProcessorSharing(k=1.0, p=1.0)
    sharing.enter("first", 2.0, now=0)
    sharing.enter("second", 2.0, now=1)
    assert ends(sharing) == [("first", 3.0), ("second", 4.0)]


def test_what_is_abandoned_no_longer_slows_down_the_others() -> None:
    sharing = ProcessorSharing(k=1.0, p=1.0)
    sharing.enter("kept", 2.0, now=0)
    sharing.enter("left", 2.0, now=0)
    sharing.abandon("left", now=2)
    assert ends(sharing) == [("kept", 3.0)]


def test_a_crowd_that_interferes_in_pairs_finishes_less_the_larger_it_is_and_one_that_shares_does_not() -> None:
    def rate(p: float, count: int) -> float:
        sharing = ProcessorSharing(fitted_k(p), p)
        for key in range(count):
            sharing.enter(key, ALONE_S, now=0)
        return count / ends(sharing)[-1][1]

    assert rate(2.0, AT_ONCE) < rate(2.0, 29) / 2
    assert rate(1.0, AT_ONCE) > rate(1.0, 29)


# --- numbers --------------------------------------------------------------------------------------------------------


def test_jains_index_is_one_for_equals_and_one_nth_when_one_has_all() -> None:
    assert jain([3, 3, 3]) == 1
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 0


def test_the_refused_share_is_of_the_calls_that_ended() -> None:
    tally = {"answered": [1, 1], "latencies_s": [0.1, 0.2], **NOTHING_ELSE, "late": 1, "given_up": 1}
    assert LoadResult(1.0, [tally, tally]).refused == pytest.approx(1 / 4)
    nobody = LoadResult(1.0, [{"answered": [0], "latencies_s": [], **NOTHING_ELSE}])
    assert (nobody.refused, nobody.latency(0.99), nobody.goodput) == (None, None, 0)


def test_growth_is_the_slope_of_the_samples_after_the_first_quarter_while_the_tasks_are_open() -> None:
    def sample(calls: int, rss_kib: float, tasks: int = 10, fds: int = 50) -> HubSample:
        return HubSample(0.0, calls, tasks, rss_kib, fds, 1.0)

    working = [sample(1000 * number, 1000 + 3 * number) for number in range(4, 10)]
    watch = HubHistory([sample(0, 0.0, tasks=1, fds=5), *working, sample(12_000, 0.0, tasks=0, fds=5)])
    assert watch.settled == working
    assert watch.slope() == pytest.approx(3.0)
    assert watch.fd_growth() == 0


def test_the_slope_of_a_single_place_is_none() -> None:
    assert least_squares([1, 1], [2, 5]) == 0


# --- end to end -----------------------------------------------------------------------------------------------------


def without_nan(outcome: Outcome) -> Outcome:
    for row in (row for table in outcome.tables for row in table.rows):
        assert not any(isinstance(value, float) and math.isnan(value) for value in row.values()), row
    return outcome


@pytest.mark.slow
def test_overload_asks_both_variants_in_every_table() -> None:
    outcome = without_nan(overload.run(TINY_OVERLOAD))
    everybody, by_load, runs, quiet = outcome.tables
    assert [row["way"] for row in everybody.rows] == list(VARIANTS)
    assert [row["way"] for row in runs.rows] == list(VARIANTS)
    assert "By load" in by_load.title
    assert [(row["tasks"], row["way"]) for row in by_load.rows] == [
        (load, variant) for load in ("2 tasks", "4 tasks") for variant in VARIANTS
    ]
    # The greatest load is the main case, measured once.
    for row, main in zip(by_load.rows[-2:], everybody.rows, strict=True):
        assert (row["goodput"], row["p99_s"]) == (main["goodput"], main["p99_s"])
    assert [(point["tasks"], point["way"]) for point in outcome.raw["by load"]] == [
        (tasks, variant) for tasks in (2, 4) for variant in VARIANTS
    ]
    assert len(quiet.rows) == 3
    assert quiet.rows[0]["noisy"] == 0
    assert all(0 <= row["noisy"] <= TINY_OVERLOAD.burst for row in quiet.rows)
    assert len(outcome.targets) == 4


def test_a_check_compares_equal_loads_and_each_with_no_backpressure_at_the_same_load() -> None:
    def window(answers: int, seconds: float) -> LoadResult:
        return LoadResult(1.0, [{"answered": [answers], "latencies_s": [seconds] * answers, **NOTHING_ELSE}] * 2)

    outcome = Outcome()
    found = {8: {OPEN: window(10, 0.2), OURS: window(9, 0.4)}, 120: {OPEN: window(10, 4.0), OURS: window(30, 2.0)}}
    overload.add_by_load(found, "By load", outcome)
    result = {"raw": outcome.raw, "targets": [], "tables": outcome.to_json()["tables"]}
    assert {each.name: each.value for each in ratios(result)} == {
        f"By load, {OURS}, 8 tasks, in time/s ÷ no backpressure": pytest.approx(0.9),
        f"By load, {OURS}, 8 tasks, p99 ÷ no backpressure": pytest.approx(2.0),
        f"By load, {OURS}, 120 tasks, in time/s ÷ no backpressure": pytest.approx(3.0),
        f"By load, {OURS}, 120 tasks, p99 ÷ no backpressure": pytest.approx(0.5),
    }


@pytest.mark.slow
def test_a_small_sweep_answers_every_call_and_leaves_nothing_behind() -> None:
    outcome = without_nan(sweep.run(TINY_SWEEP))
    calls, hub, growth = outcome.tables
    (row,) = calls.rows
    assert row["made"] == row["answered"] == 2 * (2 * 8 + 1 * 3)
    counts = {target.claim: target.value for target in outcome.targets if target.limit == 0}
    assert counts == dict.fromkeys(counts, 0)
    assert len(counts) == 4
    assert hub.rows[0]["starts"] > 0
    assert [each["what"] for each in growth.rows] == ["while the tasks work", "while short tasks come and go"]
