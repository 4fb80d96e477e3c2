"""The questions of many tasks answer end to end with two of them, and tell what went wrong instead of ending."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.common.agent_startup import Builtin
from benchmarks.common.result import Json, Outcome, Target
from benchmarks.common.server_commands import ServerCommand, fixture_echo
from benchmarks.density import benchmark as density
from benchmarks.density import capacity
from benchmarks.density.benchmark import OPEN_TASKS
from benchmarks.questions import BENCHMARKS
from benchmarks.storm import benchmark as storm
from tests.benchmarks.tiny_starts import TINY_DENSITY, TINY_STORM

BROKEN = ServerCommand("broken", [sys.executable, "-c", "raise SystemExit('no reason')"], "echo", {})


def by_claim(targets: list[Target], words: str) -> float | None:
    (value,) = (target.value for target in targets if words in target.claim)
    return value


def density_case(**fields: Any) -> capacity.DensityCase:
    echo = fixture_echo()
    plain = capacity.DensityCase(
        "echo", {echo.name: echo.config()}, counts=(2,), budget_s=20, budget_bytes=2**30, task_bytes=0, step=1
    )
    return replace(plain, **fields)


# --- storm --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_storm() -> Outcome:
    return storm.run(TINY_STORM)


@pytest.mark.slow
def test_storm_gets_every_pair_ready_in_every_variant_and_leaves_nothing_behind(tiny_storm: Outcome) -> None:
    (table,) = tiny_storm.tables
    assert [row["way"] for row in table.rows] == [variant.label for variant in storm.VARIANTS.values()]
    counts = [(row["ready"], row["wanted"], row["failures"], row["left_behind"]) for row in table.rows]
    assert counts == [(4, 4, 0, 0)] * 4 + [(6, 6, 0, 0)]
    assert by_claim(tiny_storm.targets, "not ready") == by_claim(tiny_storm.targets, "left behind") == 0


@pytest.mark.slow
def test_storm_counts_the_processes_of_the_supervisor_with_those_of_the_servers(tiny_storm: Outcome) -> None:
    processes = {name: tiny_storm.raw[f"{name}/2"]["processes"] for name in storm.VARIANTS}
    assert processes["gather"] == 4
    assert processes["exec"] > 4  # the supervisor and its shims
    assert processes["builtin"] == 0


@pytest.mark.slow
def test_storm_compares_with_the_first_row(tiny_storm: Outcome) -> None:
    first, *others = tiny_storm.tables[0].rows
    assert (first["faster"], first["percent"]) == (1, 100)
    assert [row["faster"] for row in others] == [first["seconds"] / row["seconds"] for row in others]


@pytest.mark.slow
def test_storm_judges_no_ratio_of_fewer_tasks_than_the_target_names(tiny_storm: Outcome) -> None:
    rows = {name: {"ready": 1, "wanted": 1, "faster": 7.0, "percent": 30.0} for name in storm.VARIANTS}
    ratios = [target for target in tiny_storm.targets if f"{storm.TASKS} tasks" in target.claim]
    assert [target.value for target in ratios] == [None] * 4
    judged = storm._targets(rows, storm.TASKS)
    assert [target.value for target in judged if target.claim in {t.claim for t in ratios}] == [7, 30, 7, 7]


@pytest.mark.slow
def test_storm_survives_a_server_that_does_not_start() -> None:
    variants = {name: storm.VARIANTS[name] for name in ("gather", "exec")}
    outcome = storm.run(storm.StormScale(tasks=2, deadline_s=20, servers=(fixture_echo(), BROKEN), variants=variants))
    counts = [(row["ready"], row["failures"], row["left_behind"]) for row in outcome.tables[0].rows]
    assert counts == [(2, 2, 0)] * 2
    assert by_claim(outcome.targets, "not ready") == 2
    assert by_claim(outcome.targets, "share: hub") is None
    assert all(row.get("faster") is None for row in outcome.tables[0].rows)
    assert any(note.startswith(f"{storm.VARIANTS['exec'].label}, 2 tasks: failed 2 times") for note in outcome.notes)


@pytest.mark.slow
def test_storm_leaves_out_what_the_memory_is_not_enough_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "room_bytes", lambda: 0)
    variants = {name: storm.VARIANTS[name] for name in ("gather", "shared")}
    gathered, shared = storm.run(replace(TINY_STORM, variants=variants)).tables[0].rows
    assert (gathered["ready"], gathered.get("seconds")) == (0, None)
    assert shared["ready"] == 4


# --- density ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_density_opens_every_task_in_every_variant_and_leaves_nothing_behind() -> None:
    outcome = density.run(TINY_DENSITY)
    each, many = outcome.tables
    assert [(row["first"], row["last"]) for row in each.rows] == [(1, 2)] * 5
    processes = {row["way"]: row["processes"] for row in each.rows}
    assert processes["share: task, spawn: exec"] >= 1
    assert processes["share: hub, one process per server"] == processes["builtin, a session per task and server"] == 0
    assert [(row["tasks"], row["wanted"]) for row in many.rows] == [(3, 3), (3, 3), (2, 2)]
    assert by_claim(outcome.targets, "left behind") == 0
    assert not [note for note in outcome.notes if "stopped early" in note]


def test_density_says_nothing_about_tasks_that_it_has_not_seen() -> None:
    small: Json = {"tasks": OPEN_TASKS - 1, "total": 10.0}
    assert density._total("few", small, OPEN_TASKS, 1).value is None
    assert density._total("all", small | {"tasks": OPEN_TASKS}, OPEN_TASKS, 1).value == pytest.approx(10 / 1024)
    assert density._total("few and too large", small | {"total": 2048.0}, OPEN_TASKS, 1).value == 2
    assert density._total("none", {"tasks": 0}, OPEN_TASKS, 1).value is None


@pytest.mark.slow
def test_density_survives_a_server_that_does_not_start() -> None:
    broken = Builtin("missing", {}, {}, is_shared=False)
    outcome = density.run(replace(TINY_DENSITY, servers=(broken,)))
    each, many = outcome.tables
    assert [row["mib"] for row in each.rows] == [None] * 5
    assert [row["tasks"] for row in many.rows] == [0, 0, 2]
    assert len([note for note in outcome.notes if "stopped early" in note]) == 5


@pytest.mark.slow
def test_a_stage_opens_nothing_that_there_is_no_room_for() -> None:
    packed = capacity.measure_capacity(density_case(task_bytes=2**60))
    assert [size.tasks for size in packed.sizes] == [0]
    assert packed.stopped is not None and "too much" in packed.stopped


@pytest.mark.slow
def test_a_stage_stops_when_it_takes_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "room_bytes", iter(range(2**50, 0, -(2**40))).__next__)
    packed = capacity.measure_capacity(density_case(budget_bytes=1))
    assert [size.tasks for size in packed.sizes] == [1]
    assert packed.stopped is not None and packed.stopped.startswith("it took")


@pytest.mark.slow
def test_a_stage_stops_when_its_time_is_over_and_closes_what_is_not_ready() -> None:
    silent = {"silent": {"command": sys.executable, "args": ["-S", "-c", "import sys; sys.stdin.read()"]}}
    packed = capacity.measure_capacity(density_case(entries=silent, budget_s=0.5))
    assert [(size.tasks, packed.left_behind) for size in packed.sizes] == [(0, 0)]
    assert packed.stopped is not None and "were over" in packed.stopped


def test_both_questions_are_in_the_runner() -> None:
    assert {"storm", "density"} <= set(BENCHMARKS)
