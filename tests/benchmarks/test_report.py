"""README.md of the benchmarks is made from results and from nothing else, and no run loses results."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks import runner
from benchmarks.common import machine
from benchmarks.common.result import Benchmark, Outcome
from benchmarks.common.subprocess_worker import WorkerFailed
from benchmarks.questions import BENCHMARKS
from benchmarks.report.pages import targets_sentence
from testbed.engine.install import EngineSetupError

Json = dict[str, Any]


def page_of(directory: Path, result: Json) -> str:
    runner.save(result, directory)
    return (directory / "README.md").read_text()


def test_the_committed_page_is_what_the_committed_results_make() -> None:
    assert (runner.HERE / "README.md").read_text() == runner.render()


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    runner.main(["report", "--out", str(tmp_path)])
    page = (tmp_path / "README.md").read_text()
    assert page.count("No results yet") == len(BENCHMARKS)


def test_a_number_changed_in_a_result_changes_on_the_page(tmp_path: Path, result: Json) -> None:
    assert "| ours | 12.3 |" in page_of(tmp_path, result)
    result["tables"][0]["rows"][0]["ms"] = 98.76
    page = page_of(tmp_path, result)
    assert "| ours | 98.8 |" in page
    assert "12.3" not in page


def test_the_newest_result_of_a_question_is_shown(tmp_path: Path, result: Json) -> None:
    newer = json.loads(json.dumps(result)) | {"date": "2026-02-01T00:00:00+00:00"}
    newer["tables"][0]["rows"][0]["ms"] = 1.0
    runner.save(newer, tmp_path)
    page = page_of(tmp_path, result)
    assert "2026-02-01T00:00:00+00:00" in page
    assert "| ours | 1.0 |" in page


def test_the_page_says_where_and_how_it_was_measured(tmp_path: Path, result: Json) -> None:
    page = page_of(tmp_path, result)
    for fact in ("2 cores of a processor", "8 GiB", "Python 3.11.7", "mcp 2.3.0", "0123456789ab", "A note."):
        assert fact in page
    assert "`toolhub bench overhead`" in page
    assert "noisy" not in page


def test_a_noisy_or_quick_run_is_marked(tmp_path: Path, result: Json) -> None:
    result["noise"]["noisy"] = result["quick"] = True
    page = page_of(tmp_path, result)
    assert "**noisy**" in page
    assert "quick run" in page


@pytest.mark.parametrize(
    ("value", "at_most", "word"),
    [
        (1.2, True, "met"),
        (1.21, True, "missed"),
        (300.0, False, "met"),
        (1.0, False, "missed"),
        (None, True, "not measured"),
    ],
)
def test_a_target_is_judged_by_its_number(value: float | None, at_most: bool, word: str) -> None:
    target = {"claim": "ours", "value": value, "limit": 1.2, "unit": "×", "at_most": at_most}
    assert targets_sentence([target]).startswith(f"Targets **{word}**: ours")


# --- a whole run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run `toolhub bench all` with these questions; gives its exit status."""
    monkeypatch.setattr(machine, "LOAD_CHECK_S", 0.01)

    def run(*arguments: str, **questions: Callable[[None], Outcome]) -> int:
        asked = {name: Benchmark(name, f"{name}?", run, full=None, quick=None) for name, run in questions.items()}
        monkeypatch.setattr(runner, "BENCHMARKS", asked)
        try:
            runner.main([*(arguments or ("all",)), "--out", str(tmp_path)])
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return run


def answer(_: None) -> Outcome:
    return Outcome(notes=["Left out: what is not here."])


def fail(_: None) -> Outcome:
    raise ValueError("no luck")


def miss(_: None) -> Outcome:
    raise EngineSetupError("run: make engine")


def interrupt(_: None) -> Outcome:
    signal.raise_signal(signal.SIGINT)
    raise AssertionError("not interrupted")


def interrupt_in_a_loop(_: None) -> Outcome:
    async def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    anyio.run(wait)
    raise AssertionError("not interrupted")


def interrupt_a_worker(_: None) -> Outcome:
    try:
        return interrupt(None)
    except KeyboardInterrupt:
        raise WorkerFailed("ended with -2") from None


def kept(directory: Path) -> set[str]:
    return {path.stem for path in directory.glob("results/*/*.json")}


def test_a_question_that_fails_costs_no_other_its_result(
    ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(idle=answer, init=fail, kv=miss, storm=answer) == 1
    assert kept(tmp_path) == {"idle", "storm"}
    said = capsys.readouterr().err
    assert "3 of 4: kv" in said
    assert "2 of 4 questions answered" in said
    assert "Failed: init (ValueError: no luck)." in said
    assert "Left out: kv (run: make engine)." in said
    assert "storm: Left out: what is not here." in said
    assert str(tmp_path / "README.md") in said


@pytest.mark.parametrize("is_dirty", [True, False])
def test_a_result_of_a_checkout_with_local_changes_is_not_kept_among_the_committed_ones(
    is_dirty: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "HERE", tmp_path)
    monkeypatch.setattr(runner, "git_revision", lambda: {"revision": "0123", "dirty": is_dirty})
    monkeypatch.setattr(runner, "BENCHMARKS", {"idle": Benchmark("idle", "?", answer, full=None, quick=None)})
    runner.main(["idle"])
    assert kept(tmp_path) == (set() if is_dirty else {"idle"})
    assert ("local changes; commit them" in capsys.readouterr().err) == is_dirty


def test_what_is_not_installed_is_left_out_of_many_and_an_error_alone(ask: Callable[..., int]) -> None:
    assert ask(kv=miss, idle=answer) == 0
    assert ask("kv", kv=miss, idle=answer) == 1


def test_a_question_is_announced_with_the_time_that_it_took_last(
    ask: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    ask(idle=answer, nothing_yet=answer)
    first, second = [line for line in capsys.readouterr().err.splitlines() if " of 2: " in line]
    assert first.startswith("1 of 2: idle, about ") and first.endswith(" s (last committed run)")
    assert second == "2 of 2: nothing_yet"


@pytest.mark.parametrize("how", [interrupt, interrupt_in_a_loop, interrupt_a_worker])
def test_ctrl_c_ends_a_run_with_what_was_kept(
    how: Callable[[None], Outcome], ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert ask(idle=answer, init=how, storm=answer) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert kept(tmp_path) == {"idle"}
    said = capsys.readouterr().err
    assert "Interrupted: 1 of 3 questions answered" in said
    assert "Traceback" not in said


def test_a_check_goes_on_after_a_question_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "LOAD_CHECK_S", 0.01)
    asked = {name: Benchmark(name, "?", run, full=None, quick=None) for name, run in (("idle", fail), ("init", answer))}
    monkeypatch.setattr(runner, "BENCHMARKS", asked)
    with pytest.raises(SystemExit) as ended:
        runner.main(["check", "idle", "init"])
    assert ended.value.code == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == "1 of 2 questions measured; no ratio moved"
    assert "ValueError: no luck" in told.err
    assert "init: Left out: what is not here." in told.err


def test_a_machine_that_others_use_is_refused_if_asked_for(
    ask: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its parent has not waited for it, so what it uses counts as somebody else's.
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as busy:
        try:
            monkeypatch.setattr(machine, "LOAD_CHECK_S", 0.5)
            assert ask("all", "--quiet-only", idle=answer) == 2
            assert kept(tmp_path) == set()
            assert ask("all", idle=answer) == 0
        finally:
            busy.kill()
    assert kept(tmp_path) == {"idle"}
