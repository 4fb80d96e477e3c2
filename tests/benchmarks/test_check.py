"""`toolhub bench check` says which ratios have moved, and by how much they may."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.questions import BENCHMARKS
from benchmarks.report import check
from benchmarks.report.check import DEFAULT_NOISE, LEAST_NOISE, compare, own_noise, ratios
from benchmarks.report.pages import newest_results

Json = dict[str, Any]

COMMITTED = newest_results(runner.HERE / "results", BENCHMARKS)


def with_value(result: Json, value: float | None) -> Json:
    changed = copy.deepcopy(result)
    changed["targets"][0]["value"] = value
    return changed


def kept(result: Json, directory: Path) -> Path:
    path = directory / "results" / "2026-01-02" / f"{result['question']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return directory


@pytest.mark.parametrize("name", sorted(COMMITTED))
def test_a_committed_result_has_ratios_and_has_not_moved_beside_itself(name: str) -> None:
    found = compare(COMMITTED[name], COMMITTED[name])
    assert found.compared > 0
    assert (found.alone, list(found.moved)) == (0, [])


def test_only_a_ratio_that_moved_by_more_than_the_noise_is_named(result: Json) -> None:
    # Both runs have a noise of 25 %, which is 35 % together.
    assert compare(result, with_value(result, 1.5 * 1.34)).moved == []
    (moved,) = compare(result, with_value(result, 1.5 * 1.37)).moved
    assert str(moved).startswith("ours ÷ theirs: 1.5 -> 2.06 × (+37 %, noise 35 %), worse; the target was met")
    (moved,) = compare(result, with_value(result, 1.5 / 1.37)).moved
    assert str(moved).endswith("better")


@pytest.mark.parametrize("which", ["committed", "fresh"])
def test_a_noisy_run_may_differ_twice_as_much(result: Json, which: str) -> None:
    runs = {"committed": result, "fresh": with_value(result, 1.5 * 1.6)}
    runs[which]["noise"] = {**runs[which]["noise"], "noisy": True}
    found = compare(runs["committed"], runs["fresh"])
    assert found.moved == []
    assert f"The {which} run was noisy" in found.remarks[0]


def test_the_noise_is_that_of_the_rounds_where_they_are_known() -> None:
    quiet, wild = [10.0, 10.0, 10.0], [10.0, 20.0, 30.0]
    assert own_noise({}) == DEFAULT_NOISE
    assert own_noise({"ways": {"ours": {"p50_us_by_round": quiet}}}) == LEAST_NOISE
    assert own_noise({"ways": {"ours": {"per_s_by_round": {"8": wild}}}}) == pytest.approx(0.4)
    assert own_noise({"ms": wild}) == DEFAULT_NOISE


def test_a_row_has_the_noise_of_its_own_rounds(result: Json) -> None:
    result["tables"][0]["columns"][1]["label"] = "p50 ÷ SDK"
    result["raw"] = {
        "lean": {"ours": {"p50_us_by_round": [1.0, 2.0, 3.0]}, "theirs": {"p50_us_by_round": [1.0, 1.0, 1.0]}}
    }
    by_name = {each.name: each for each in ratios(result)}
    assert by_name["Speed, ours, p50 ÷ SDK"].noise == pytest.approx(0.4)


def test_a_table_without_ratios_is_compared_by_its_first_measure_over_that_of_the_first_row(result: Json) -> None:
    result["tables"][0]["rows"].append({"way": "theirs", "ms": 24.68})
    by_name = {each.name: each.value for each in ratios(result)}
    assert by_name == {"ours ÷ theirs": 1.5, "Speed, theirs, p50 ms ÷ first row": pytest.approx(2.0)}


def test_the_first_measure_is_the_first_column_that_has_a_unit_and_differs(result: Json) -> None:
    table = result["tables"][0]
    table["columns"] += [{"key": key, "label": label, "digits": 0} for key, label in (("n", "calls"), ("s", "wall s"))]
    table["rows"] = [{"way": "ours", "ms": 1.0, "n": 1, "s": 2.0}, {"way": "theirs", "ms": 1.0, "n": 2, "s": 6.0}]
    by_name = {each.name: each.value for each in ratios(result)}
    assert by_name["Speed, theirs, wall s ÷ first row"] == 3.0


def test_times_and_counts_are_no_ratios(result: Json) -> None:
    result["targets"] += [{"claim": "p50", "value": 3.0, "limit": 4, "unit": "ms", "at_most": True}]
    result["targets"] += [{"claim": "lost", "value": 0, "limit": 0, "unit": "", "at_most": True}]
    assert [each.name for each in ratios(result)] == ["ours ÷ theirs"]


def test_a_few_points_of_a_percentage_are_no_news(result: Json) -> None:
    for run in (small := copy.deepcopy(result), large := copy.deepcopy(result)):
        run["targets"][0]["unit"] = "%"
    small["targets"][0]["value"], large["targets"][0]["value"] = 0.0, 1.9
    assert compare(small, large).moved == []
    large["targets"][0]["value"] = 5.0
    assert len(compare(small, large).moved) == 1


def test_what_only_one_result_has_is_counted_and_not_compared(result: Json) -> None:
    found = compare(result, with_value(result, None))
    assert (found.compared, found.alone) == (0, 1)
    assert found.lines()[0].startswith("overhead: nothing to compare")


def test_another_machine_is_named(result: Json) -> None:
    other = copy.deepcopy(result)
    other["machine"]["cores"] = 64
    assert compare(result, other).remarks == ["Committed on 2 cores of a processor, now 64 cores of a processor."]


def test_a_question_without_a_committed_result_is_not_measured(tmp_path: Path) -> None:
    said: list[str] = []
    assert check.check(["overhead"], tmp_path, lambda name: pytest.fail(name), said.append)
    assert said == ["overhead: no committed result to compare with"]


@pytest.mark.parametrize(
    ("factor", "options", "code"),
    [(1.0, [], 0), (1.0, ["--strict"], 0), (9.0, [], 0), (9.0, ["--strict"], 1)],
)
def test_only_a_strict_check_fails_and_only_when_something_moved(
    factor: float, options: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = copy.deepcopy(COMMITTED["overhead"])
    fresh["targets"][0]["value"] *= factor
    with pytest.raises(SystemExit) as ended:
        runner.main(["check", "--against", str(kept(fresh, tmp_path)), *options, "overhead"])
    assert ended.value.code == code
    assert (" -> " in capsys.readouterr().out) == (factor > 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["check", "nonsense"], "no such question: nonsense"),
        (["check", "--against", "/nowhere/at/all"], "no such directory"),
        (["check", "--json"], "do not go with it"),
        (["overhead", "init"], "go with `check` only"),
        (["overhead", "--strict"], "go with `check` only"),
    ],
)
def test_what_makes_no_sense_together_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        runner.main(arguments)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
