"""README.md of the benchmarks is made from results and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.report import targets_sentence

Json = dict[str, Any]


def page_of(directory: Path, result: Json) -> str:
    runner.save(result, directory)
    return (directory / "README.md").read_text()


def test_the_committed_page_is_what_the_committed_results_make() -> None:
    assert (runner.HERE / "README.md").read_text() == runner.render()


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    runner.main(["report", "--out", str(tmp_path)])
    page = (tmp_path / "README.md").read_text()
    assert page.count("No results yet") == len(runner.QUESTIONS)


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
