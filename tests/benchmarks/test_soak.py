"""The soak: what its ledger and its report say of runs that are made up, and one short real run with faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import runner
from benchmarks.common.result import ROOT, Benchmark, Outcome
from benchmarks.soak import benchmark, leftovers, report
from benchmarks.soak.benchmark import SoakFindings, SoakSample, SoakScale
from benchmarks.soak.faults import ENDS_THE_HUB, KINDS, deck
from benchmarks.soak.hub import SoakHub
from benchmarks.soak.ledger import (
    CallCounts,
    CallRecord,
    Ledger,
    ProcessLedger,
    Told,
    append,
    is_repeatable,
    quantile,
    step_of,
    unpack,
)

WORK, LOOK = 1, 5
assert is_repeatable(LOOK) and not is_repeatable(WORK)


def told(number: int, *news: Told, error: str = "") -> list[CallRecord]:
    return [CallRecord(number, Told.ASKED, "exec"), *(CallRecord(number, each, "exec", error, 7) for each in news)]


def judged(records: list[CallRecord], executed: list[int]) -> CallCounts:
    book = ProcessLedger()
    book.take(records)
    for number in executed:
        book.execute(number)
    return book.close()


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_a_call_that_was_executed_once_and_answered_breaks_no_rule() -> None:
    counts = judged(told(WORK, Told.ANSWERED), [WORK])
    assert (counts.calls, counts.answered) == (1, 1)
    assert (counts.lost, counts.executed_twice, counts.broken_promises, counts.unexplained) == (0, 0, 0, 0)


def test_a_call_that_must_not_be_repeated_and_was_executed_twice_is_counted() -> None:
    assert judged(told(WORK, Told.ANSWERED), [WORK, WORK]).executed_twice == 1


def test_a_read_only_call_may_be_executed_twice() -> None:
    counts = judged(told(LOOK, Told.ANSWERED), [LOOK, LOOK])
    assert (counts.executed_twice, counts.repeated) == (0, 1)


def test_a_call_with_neither_answer_nor_error_is_lost() -> None:
    assert judged(told(WORK), [WORK]).lost == 1


def test_a_call_that_was_given_up_after_an_error_is_not_lost() -> None:
    counts = judged(told(WORK, Told.MAYBE, Told.GAVE_UP, error="SessionLost"), [WORK])
    assert (counts.lost, counts.given_up, counts.errors) == (0, 1, Counter({"SessionLost/maybe": 1}))


def test_a_call_that_was_executed_although_nothing_was_sent_is_a_broken_promise() -> None:
    assert judged(told(WORK, Told.UNSENT, Told.GAVE_UP, error="Overloaded"), [WORK]).broken_promises == 1


def test_a_call_that_was_answered_when_it_was_asked_again_breaks_no_promise() -> None:
    assert judged(told(WORK, Told.UNSENT, Told.ANSWERED, error="Overloaded"), [WORK]).broken_promises == 0


def test_an_answer_to_a_call_that_nobody_executed_is_unexplained() -> None:
    assert judged(told(WORK, Told.ANSWERED), []).unexplained == 1


def test_code_in_a_sandbox_is_judged_without_a_ledger() -> None:
    records = [CallRecord(WORK, Told.ASKED, "python"), CallRecord(WORK, Told.ANSWERED, "python")]
    assert judged(records, []).unexplained == 0


def test_an_answer_of_another_call_is_wrong() -> None:
    assert judged(told(WORK, Told.WRONG), [WORK]).wrong == 1


def test_records_survive_the_file_and_one_that_was_cut_short_is_left_out() -> None:
    records = told(70_000, Told.UNSENT, Told.ANSWERED, error="StartError")
    data = b"".join(record.pack() for record in records)
    assert list(unpack(data + data[:3])) == records


def test_an_error_class_that_is_not_known_is_counted_as_another() -> None:
    (record,) = unpack(CallRecord(1, Told.MAYBE, "exec", "SomethingNew").pack())
    assert record.error == "other"


def test_a_ledger_reads_the_files_of_all_processes_as_they_grow(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 2)
    append(Ledger.told_path(tmp_path, 1), b"".join(record.pack() for record in told(WORK, Told.ANSWERED)))
    append(ledger.executed_path, b"1-1\nprobe-7\nprobe-7\n1-")
    assert ledger.read().answered == 1
    append(ledger.executed_path, b"1\n")
    counts = ledger.close()
    assert counts.executed_twice == 2  # the call, and the probe


def test_times_are_counted_in_steps_of_a_few_percent() -> None:
    assert [step_of(ms) for ms in (0, 19, 100, 1000)] == [0, 19, 100, 992]
    assert all(step_of(ms) <= ms < step_of(ms) * 1.07 for ms in range(20, 5000))
    assert quantile(Counter({10: 98, 500: 2}), 0.5) == 10
    assert quantile(Counter({10: 98, 500: 2}), 0.99) == 500


def test_counts_survive_json() -> None:
    counts = judged(told(WORK, Told.MAYBE, Told.GAVE_UP, error="SessionLost"), [WORK])
    assert CallCounts.of_json(json.loads(json.dumps(counts.to_json()))) == counts


# --- faults -----------------------------------------------------------------------------------------------------------


def test_there_are_at_least_twenty_kinds_of_faults() -> None:
    assert len(KINDS) >= 20


def test_every_soak_kills_and_restarts_its_hub_early() -> None:
    for seed in range(20):
        assert set(islice(deck(seed), 7)) >= ENDS_THE_HUB


def test_the_same_seed_deals_the_same_faults_and_every_kind_before_any_comes_again() -> None:
    first = list(islice(deck(7), 2 * len(KINDS)))
    assert set(first[: len(KINDS)]) == set(first[len(KINDS) :]) == set(KINDS)
    assert list(islice(deck(7, start=5), 10)) == first[5:15]
    assert list(islice(deck(8), len(KINDS))) != first[: len(KINDS)]


# --- the report -------------------------------------------------------------------------------------------------------


def life(number: int, sizes: list[int], *, each: int = 50_000) -> list[SoakSample]:
    return [SoakSample(float(at), number, at * each, size, 30) for at, size in enumerate(sizes)]


def test_growth_is_that_of_the_longest_life_without_its_warm_up() -> None:
    mib = 2**20
    steady = [50 * mib, 90 * mib, 100 * mib, *([100 * mib] * 10)]
    grown = report.growth([*life(1, [10 * mib, 20 * mib]), *life(2, steady)])
    assert grown is not None
    assert grown["percent_per_million"] == pytest.approx(0, abs=0.01)


def test_growth_of_a_hub_that_grows_is_told_per_million_calls() -> None:
    mib = 2**20
    grown = report.growth(life(1, [100 * mib + at * mib for at in range(21)]))
    assert grown is not None
    assert grown["bytes_per_million"] == pytest.approx(20 * mib)


def test_growth_over_few_calls_is_not_told() -> None:
    assert report.growth(life(1, [1, 2, 3, 4], each=100)) is None
    assert report.growth([]) is None


def test_a_fault_without_recovery_misses_its_target_and_one_that_was_left_out_does_not() -> None:
    found = SoakFindings(1)
    found.faults = [
        {"kind": "disk full", "what": "", "recovered_ms": None, "problem": "left out: not root"},
        {"kind": "hub killed", "what": "the hub", "recovered_ms": None, "problem": "no answer within 120 s"},
    ]
    targets = {target.claim: target.value for target in report.targets(found)}
    assert targets["faults not recovered from"] == 1
    notes = report.outcome(SoakScale(calls=1, minutes=1), found, is_interrupted=False).notes
    assert any("Left out: disk full (not root)" in note for note in notes)
    assert any("Not recovered: hub killed" in note for note in notes)


# --- runs -------------------------------------------------------------------------------------------------------------

# One of each: a server, the hub, what it stands on, an upstream, a client.
FEW = frozenset({"server killed (exec)", "hub killed", "client vanishes", "upstream cuts its answers", "hub stopped"})


def verdicts(outcome: Outcome) -> dict[str, float | None]:
    return {target.claim: target.value for target in outcome.targets}


@pytest.mark.slow
def test_a_short_soak_with_faults_loses_nothing_doubles_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """The second run goes on from where the first stopped."""
    state = tmp_path / "soak.json"
    scale = SoakScale(
        calls=10**9, minutes=0.1, seed=3, tasks=6, calls_each=40, state=state, kinds=FEW, pause_s=(0.0, 0.1)
    )
    first = benchmark.run(scale)
    kept = SoakFindings.of_json(json.loads(state.read_text()))
    assert kept.counts.calls == first.raw["counts"]["calls"]
    goal = kept.counts.calls + 300
    outcome = benchmark.run(replace(scale, calls=goal, faults=3, minutes=5.0))
    assert not state.exists()  # it is finished
    assert outcome.raw["counts"]["calls"] >= goal and outcome.raw["parts"] == 2
    found = verdicts(outcome)
    growth = found.pop("growth of the hub per million calls")
    assert growth is None  # too few calls to tell
    assert set(found.values()) == {0}, (found, outcome.raw["faults"])
    struck = {fault["kind"] for fault in outcome.raw["faults"] if fault.get("recovered_ms") is not None}
    assert len(struck) == 3, outcome.raw["faults"]


@contextmanager
def endless_soak(state: Path) -> Iterator[subprocess.Popen[str]]:
    """A soak in a process of its own, which has told its first progress."""
    program = (
        "import sys; from pathlib import Path; from benchmarks.soak.benchmark import run, SoakScale\n"
        "state = Path(sys.argv[1])\n"
        "scale = SoakScale(calls=10**9, minutes=5, tasks=4, calls_each=20, state=state, kinds=frozenset())\n"
        "found = run(scale)\n"
        "print(found.notes[-1])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(state)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).split(" of ")[0].replace(",", "").isdecimal():
            assert line, "it ended by itself"
        yield process


@pytest.mark.slow
def test_ctrl_c_ends_a_soak_in_order_and_keeps_what_there_is(tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    with endless_soak(state) as process:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.startswith("Ended by Ctrl-C")
    assert SoakFindings.of_json(json.loads(state.read_text())).counts.lost == 0


@pytest.mark.slow
def test_a_soak_removes_the_cgroups_and_mounts_of_its_faults() -> None:
    kinds = frozenset({"no processes left", "server out of memory in a cgroup", "state folder read-only"})
    outcome = benchmark.run(SoakScale(calls=1, minutes=1.0, tasks=4, calls_each=40, kinds=kinds, faults=len(kinds)))
    assert {fault["kind"] for fault in outcome.raw["faults"]} == kinds
    found = verdicts(outcome)
    assert (found["faults not recovered from"], found["cgroups, mounts and temporary files left"]) == (0, 0)
    assert leftovers.find(os.getpid()) == ([], [])


def test_what_faults_left_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "CGROUPS", tmp_path / "cgroups")
    monkeypatch.setattr(leftovers, "MOUNTS", tmp_path / "mounts")
    leftovers.fault_cgroup("pids").mkdir(parents=True)
    source = leftovers.name(os.getpid())
    leftovers.MOUNTS.write_text(f"{source} /a tmpfs rw 0 0\n{source} /b tmpfs ro 0 0\n{source}0 /c tmpfs rw 0 0\n")
    there = SoakHub(tmp_path, {}).inventory()
    assert (there.cgroups, there.mounts) == (1, 2)


@pytest.mark.slow
def test_the_next_soak_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    with endless_soak(tmp_path / "soak.json") as process:
        below = psutil.Process(process.pid).children(recursive=True)
        left = leftovers.find(process.pid)
        process.kill()
        process.wait()
        assert psutil.wait_procs(below, timeout=60)[1] == []
    benchmark.run(SoakScale(calls=1, minutes=1.0, tasks=4, kinds=frozenset()))
    assert leftovers.find(process.pid) == ([], [])
    assert not any(mount.parent.exists() for mount in left.mounts)


@pytest.mark.slow
def test_all_measures_a_short_soak_and_does_not_keep_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def run(scale: SoakScale) -> Outcome:
        asked.append(scale)
        return Outcome()

    soak = Benchmark(
        "soak", "?", run, full=SoakScale(10**6, 60), quick=SoakScale(1, 1), in_all=SoakScale(10, 1), options=("calls",)
    )
    monkeypatch.setattr(runner, "BENCHMARKS", {"soak": soak})
    runner.main(["all", "--out", str(tmp_path)])
    assert asked == [SoakScale(10, 1)] and not (tmp_path / "results").exists()
    assert "not kept" in capsys.readouterr().err
    runner.main(["soak", "--calls", "5", "--out", str(tmp_path)])
    assert asked[1] == SoakScale(5, 60)
    (path,) = (tmp_path / "results").glob("*/soak.json")
    assert json.loads(path.read_text())["command"] == "toolhub bench soak --calls 5"


def test_options_of_the_soak_are_refused_for_other_questions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["idle", "--calls", "5"])
    assert "--calls does not go with idle" in capsys.readouterr().err
