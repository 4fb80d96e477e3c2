"""Whole tasks: every way plays the same one to its end, and what is said of it adds up."""

from __future__ import annotations

import anyio
import pytest

from benchmarks.common.result import Outcome
from benchmarks.llm.prompts import Writer
from benchmarks.model.traces import TOOLS, make_task
from benchmarks.task import benchmark as task
from benchmarks.task.modelled import CASES, POLICIES, TRIED
from benchmarks.task.replay import Round, measure_replay, write
from benchmarks.task.tables import LABELS
from benchmarks.task.variants import DROP_IN, SPAWN, TOOLHUB
from tests.benchmarks.stand_in_engine import open_large
from tests.benchmarks.tiny_tasks import TINY_REPLAY, TINY_TASK

PARTS = ("queue_s", "prefill_s", "decode_s", "tools_s", "start_s")


@pytest.fixture(scope="module")
def rounds() -> dict[str, list[Round]]:
    async def play() -> dict[str, list[Round]]:
        async with open_large() as served:
            return await measure_replay(served, TINY_REPLAY, task.VARIANTS)

    return anyio.run(play)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return task.run(TINY_TASK)


def test_a_script_says_and_answers_what_the_trace_holds() -> None:
    trace = make_task(3, 0.25, turns=5)
    script = write(trace, Writer(per_word=1.0))
    assert len(script.answers) == 5
    assert [planned["kind"] for planned in script.plan.values()] == [call.kind for call in trace.calls]
    assert [planned["seconds"] for planned in script.plan.values()] == [call.seconds for call in trace.calls]
    asked = [answer.count("<use_mcp_tool>") for answer in script.answers]
    assert asked == [len(turn.calls) for turn in trace.turns]


@pytest.mark.slow
def test_every_variant_plays_the_same_task_to_its_end(rounds: dict[str, list[Round]]) -> None:
    (trace,) = TINY_REPLAY.traces(0)
    for variant in (SPAWN, DROP_IN, TOOLHUB):
        (one,) = rounds[variant]
        (times,) = one.times
        assert (len(times.turns), len(times.calls)) == (len(trace.turns), len(trace.calls)), variant
        assert sum(one.split[part] for part in PARTS) == pytest.approx(one.split["task_s"])
        assert min(times.start_s, times.tools_s, times.first_s, times.decode_s) >= 0
        assert one.cpu_s > 0


@pytest.mark.slow
def test_the_pattern_starts_a_server_for_each_definition_and_call(rounds: dict[str, list[Round]]) -> None:
    (spawning,) = rounds[SPAWN]
    assert spawning.starts == len(TOOLS) + len(spawning.times[0].calls)


@pytest.mark.slow
def test_the_outcome_has_every_case_and_a_verdict(outcome: Outcome) -> None:
    real, model, calibration, case, sensitivity, tried = outcome.tables
    assert [row["way"] for row in real.rows] == list(LABELS.values()) == [row["way"] for row in model.rows]
    assert [row["way"] for row in case.rows] == [*LABELS.values(), f"{LABELS[TOOLHUB]}, with admission"]
    fit, mix = calibration.rows
    assert (fit["error"], mix["error"]) == pytest.approx((1.0, -5.0))
    assert len(sensitivity.rows) == 1
    assert [row["gain"] for row in tried.rows][0] == 1 and len(tried.rows) == len(TRIED.policies)
    assert all(target.value is not None for target in outcome.targets)
    for row in (*real.rows, *case.rows):
        assert sum(row[part] for part in PARTS) == pytest.approx(row["task_s"])


def test_a_gain_is_never_taken_from_a_limit_that_only_one_side_has() -> None:
    for case in CASES:
        limits = [policy.at_once for policy in case.policies if not policy.has_admission]
        assert limits.count(None) in (len(limits), len(limits) // 2), case.name
    assert {policy.at_once for policy in POLICIES} == {None}
