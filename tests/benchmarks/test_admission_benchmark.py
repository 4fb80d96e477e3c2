"""Admission: the model and the real path do the same for every policy, and what is said of them adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toolhub_agent.types import Usage

from benchmarks.admission import benchmark as admission
from benchmarks.admission.heat_map import HeatMapSettings, play_heat_map
from benchmarks.admission.modelled import ModelledEngine, simulate
from benchmarks.admission.programs import ALL_AT_ONCE, LEDGER, PolicyChoice, RunReport, Workload
from benchmarks.common.result import Outcome
from benchmarks.model.costs import EngineCosts
from tests.benchmarks.tiny_admission import TINY_ADMISSION, WORKLOAD

LOAD = Workload(2.0)
POLICIES = (ALL_AT_ONCE, LEDGER, *map(PolicyChoice, (1, 4, 16)))


def site(tokens: int) -> ModelledEngine:
    costs = EngineCosts(step_s=0.006, prefill_s=1.8e-4, pair_s=1e-7, sequence_s=7e-4, context_s=7e-7, arrival_s=0.01)
    return ModelledEngine(costs, tokens // 128, 128, 2048, LOAD.shared)


def played(choice: PolicyChoice, tokens: int, load: Workload = LOAD) -> RunReport:
    return simulate(load.traces(), choice, site(tokens))


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return admission.run(TINY_ADMISSION)


# --- the agents -------------------------------------------------------------------------------------------------------


def test_the_same_agents_come_each_time_and_longer_waits_stay_in_proportion() -> None:
    assert LOAD.traces() == LOAD.traces()
    twice = replace(LOAD, wait_s=4.0).traces()
    for one, other in zip(LOAD.traces(), twice, strict=True):
        assert [turn.wait_s * 2 for turn in one.turns] == pytest.approx([turn.wait_s for turn in other.turns])
    assert all(trace.turns[-1].wait_s == 0 for trace in twice)


def test_a_trace_as_counted_keeps_its_waits() -> None:
    (trace, *_) = LOAD.traces()
    counted = trace.as_counted([Usage(1000 + number, 5) for number in range(LOAD.turns)])
    assert [turn.wait_s for turn in counted.turns] == [turn.wait_s for turn in trace.turns]
    assert (counted.turns[2].prompt, counted.turns[2].answer) == (1002, 5)


# --- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", POLICIES, ids=lambda choice: choice.label)
@pytest.mark.parametrize("tokens", [6_000, 24_000, 80_000])
def test_every_policy_takes_every_agent_to_its_end(choice: PolicyChoice, tokens: int) -> None:
    found = played(choice, tokens)
    assert [len(agent.usages) for agent in found.agents] == [LOAD.turns] * LOAD.agents
    assert min(agent.task_s for agent in found.agents) > 0
    assert found.prompt == played(ALL_AT_ONCE, tokens).prompt


def test_where_everything_fits_admission_changes_nothing() -> None:
    assert played(LEDGER, 80_000) == played(ALL_AT_ONCE, 80_000)


def test_where_the_cache_is_too_small_admission_computes_fewer_tokens() -> None:
    ledger, together = played(LEDGER, 24_000), played(ALL_AT_ONCE, 24_000)
    assert ledger.computed < together.computed
    assert ledger.pauses is not None and ledger.pauses > 0


def test_as_many_tasks_as_there_are_is_all_at_once() -> None:
    assert played(PolicyChoice(LOAD.agents), 24_000) == played(ALL_AT_ONCE, 24_000)


def test_one_task_at_a_time_computes_each_token_once_but_for_the_rest_of_a_block() -> None:
    found = played(PolicyChoice(1), 24_000)
    fresh = LOAD.shared + sum(trace.turns[-1].prompt - LOAD.shared for trace in LOAD.traces())
    again = LOAD.agents * (LOAD.turns - 1) * (128 + LOAD.answer)
    assert fresh <= found.computed <= fresh + again


def test_a_heat_map_has_a_cell_for_each_cache_and_wait() -> None:
    settings = HeatMapSettings((3_000, 20_000), (0.5, 1.0), (1, 2), WORKLOAD)
    cells = play_heat_map(settings, EngineCosts(), 16, 512)
    assert [(cell.tokens // 100 * 100, cell.wait_s) for cell in cells] == [
        (2_900, 0.5),
        (2_900, 1.0),
        (20_000, 0.5),
        (20_000, 1.0),
    ]
    assert all(cell.ledger_s == cell.all_s for cell in cells if cell.tokens == 20_000)


# --- the outcome ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_outcome_has_every_row_the_model_beside_it_and_a_verdict(outcome: Outcome) -> None:
    small, fits, model, sweep, *heat = outcome.tables
    policies = [row["policy"] for row in small.rows]
    every = ["all at once", "token ledger", "token ledger in the LLM proxy"]
    assert policies[:3] == every and "at most 1 at a time" in policies
    assert [row["policy"] for row in fits.rows] == every
    assert small.rows[0]["makespan"] == small.rows[0]["task"] == 1
    assert len(model.rows) == len(small.rows) + len(fits.rows)
    assert [row["policy"] for row in sweep.rows] == [
        "all at once",
        "at most 1 at a time",
        "at most 2 at a time",
        "token ledger",
    ]
    assert len(heat) == 2 and all(len(table.rows) == 2 for table in heat)
    assert len(outcome.targets) == 9 and all(target.value is not None for target in outcome.targets)


@pytest.mark.slow
def test_the_real_path_and_the_model_ask_for_the_same_tokens(outcome: Outcome) -> None:
    for row in outcome.raw["rows"].values():
        (together,) = row["measured"]["all at once"]
        assert together["prompt"] == row["modelled"]["all at once"]["prompt"]
        assert all(one["prompt"] == together["prompt"] for rounds in row["measured"].values() for one in rounds)
