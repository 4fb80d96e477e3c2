"""The tables of what users notice are made from results and from nothing else, and say what toolhub does not win."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.common.result import ROOT
from benchmarks.questions import BENCHMARKS
from benchmarks.report import headline
from benchmarks.report.claims import CLAIMS, Claim
from benchmarks.report.headline import block, find, missing, summary
from benchmarks.report.pages import newest_results, verdict

Json = dict[str, Any]

COMMITTED = newest_results(runner.HERE / "results", BENCHMARKS)
ONE_CALL = next(claim for claim in CLAIMS if claim.what == "One call")


@pytest.fixture
def results(result: Json) -> dict[str, Json]:
    """Of one question: a call of 300 ms today, and of 2 ms with toolhub."""
    variant, time = ({"key": key, "label": label, "digits": 0} for key, label in (("way", "way"), ("p50_us", "p50 µs")))
    rows = [{"way": "process | call (MiroFlow)", "p50_us": 300_000.0}, {"way": "toolhub embedded", "p50_us": 2000.0}]
    table = {"title": "A server written with the SDK (`MCPServer`, stdio)", "columns": [variant, time], "rows": rows}
    return {"overhead": {**result, "tables": [table]}}


def test_the_committed_page_has_the_table_that_the_committed_results_make() -> None:
    page = (ROOT / "README.md").read_text()
    assert headline.BLOCK.findall(page) == [block(COMMITTED)]


def test_nothing_is_missing_in_the_table() -> None:
    """A claim that appears here has lost its source: a title, a label or a column was renamed."""
    assert [claim.what for claim in missing(COMMITTED) if claim.question in COMMITTED] == []


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if find(claim, COMMITTED)], ids=lambda claim: claim.what)
def test_a_row_without_its_result_is_left_out(claim: Claim) -> None:
    others = {name: result for name, result in COMMITTED.items() if name != claim.question}
    assert find(claim, others) is None
    assert f"`toolhub bench {claim.question}`" not in summary(others).partition("## Where")[0]


def test_a_row_has_both_numbers_who_is_compared_and_the_command(results: dict[str, Json]) -> None:
    row = "| One call | 300 ms: process \\| call (MiroFlow) | 2 ms | 150 | `toolhub bench overhead` |"
    assert row in summary(results)


def test_a_number_changed_in_a_result_changes_in_the_table(results: dict[str, Json]) -> None:
    results["overhead"]["tables"][0]["rows"][1]["p50_us"] = 4000.0
    assert "| 4 ms | 75 |" in summary(results)


@pytest.mark.parametrize("value", [None, 0, float("nan"), "-"])
def test_what_was_not_measured_has_no_row(value: object, results: dict[str, Json]) -> None:
    results["overhead"]["tables"][0]["rows"][1]["p50_us"] = value
    assert find(ONE_CALL, results) is None


def test_of_a_rate_more_is_better() -> None:
    for claim in (each for each in CLAIMS if each.is_rate and find(each, COMMITTED)):
        found = find(claim, COMMITTED)
        assert found is not None
        assert (found.gain > 1) == (found.ours > found.today)


def test_what_toolhub_loses_and_misses_is_listed_with_what_was_wanted(results: dict[str, Json]) -> None:
    assert "does not win" not in summary(results)
    slow = copy.deepcopy(results)
    slow["overhead"]["tables"][0]["rows"][1]["p50_us"] = 600_000.0
    assert "times better than process \\| call (MiroFlow) | 0.50 × | at least 1 × |" in summary(slow)
    results["overhead"]["targets"][0]["value"] = 2.5
    assert "| overhead: ours ÷ theirs | 2.5 × | at most 2 × | `toolhub bench overhead` |" in summary(results)


def test_every_missed_target_of_the_committed_results_is_listed() -> None:
    made = summary(COMMITTED)
    for name, result in COMMITTED.items():
        for target in result["targets"]:
            is_missed = f"| {name}: {target['claim'].replace('|', chr(92) + '|')} |" in made
            assert is_missed == (verdict(target) == "missed"), target


def test_a_noisy_or_quick_run_is_marked(results: dict[str, Json]) -> None:
    results["overhead"]["noise"]["noisy"] = results["overhead"]["quick"] = True
    assert "| `toolhub bench overhead` (noisy, quick run) |" in summary(results)


def test_the_readme_shows_at_most_five_measured_rows_and_the_benchmarks_page_shows_all() -> None:
    def rows(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("| ") and "`toolhub bench " in line]

    short, whole = rows(block(COMMITTED)), rows(summary(COMMITTED))
    assert 3 <= len(short) <= 5
    assert set(short) < set(whole)
    assert not any("modelled" in row for row in short)


def test_the_readme_has_one_line_on_losses_that_links_to_the_heading_of_their_table(results: dict[str, Json]) -> None:
    assert "#where" not in block(results)
    results["overhead"]["tables"][0]["rows"][1]["p50_us"] = 600_000.0
    assert "in 1 of 1 comparisons and 0 targets" in block(results)
    assert "(benchmarks/README.md#where-toolhub-does-not-win)" in block(results)
    assert "## Where toolhub does not win" in summary(results)


def test_what_a_model_computed_is_not_among_what_was_measured() -> None:
    measured, _, computed = summary(COMMITTED).partition("**Computed by a model of the engine, not measured**")
    assert "modelled" not in measured
    assert "A research task, modelled: " in computed


def test_a_run_that_is_kept_brings_the_table_up_to_date(
    results: dict[str, Json], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "README.md"
    page.write_text("Before.\n<!-- headline: -->\n<!-- /headline -->\nAfter.\n")
    monkeypatch.setattr(runner, "HERE", tmp_path.resolve() / "benchmarks")
    runner.save(results["overhead"], tmp_path / "elsewhere")
    assert "One call" not in page.read_text()
    runner.save(results["overhead"], runner.HERE)
    text = page.read_text()
    assert text.startswith("Before.\n<!-- headline: ") and text.endswith("<!-- /headline -->\nAfter.\n")
    assert "| One call |" in text
    runner.write_readme(runner.HERE)
    assert page.read_text() == text


def test_a_page_without_marks_stays_as_it_is(results: dict[str, Json], tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("No marks.")
    headline.write(tmp_path / "benchmarks", results)
    assert page.read_text() == "No marks."
