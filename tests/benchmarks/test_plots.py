"""A picture has one statement, bars that begin at zero, and depends on its result alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.common.result import ROOT
from benchmarks.questions import BENCHMARKS
from benchmarks.report import plots
from benchmarks.report.claims import CLAIMS
from benchmarks.report.heat_map import statement
from benchmarks.report.pages import newest_results, place
from benchmarks.report.plots import ChartBar

Json = dict[str, Any]

COMMITTED = newest_results(runner.HERE / "results", BENCHMARKS)


@pytest.fixture
def two_variants(result: Json) -> Json:
    """A call of 300 ms with a process per call, and of 2 ms with toolhub."""
    columns = [{"key": key, "label": label, "digits": 0} for key, label in (("way", "way"), ("p50_us", "p50 µs"))]
    rows = [
        {"way": "toolhub embedded", "p50_us": 2000.0},
        {"way": "SDK, process per call (MiroFlow)", "p50_us": 300_000.0},
        {"way": "not shown", "p50_us": 1.0},
    ]
    return {**result, "tables": [{"title": "A server written with the SDK (stdio)", "columns": columns, "rows": rows}]}


@pytest.mark.parametrize("question", sorted({claim.question for claim in CLAIMS if claim.statement} & set(COMMITTED)))
def test_a_committed_result_with_a_statement_that_holds_has_its_picture(question: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    assert plots.plot(COMMITTED[question], path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_picture_states_both_numbers_and_has_the_worst_bar_first(two_variants: Json) -> None:
    chart = plots.chart(two_variants)
    assert chart is not None
    assert chart.statement == "A call takes 2 ms; with a process per call it takes 300 ms"
    assert chart.bars == [
        ChartBar("SDK, process per call (MiroFlow)", 300.0, is_ours=False),
        ChartBar("toolhub embedded", 2.0, is_ours=True),
    ]


@pytest.mark.parametrize("ours", [None, 290_000.0, 600_000.0])
def test_what_is_about_equal_worse_or_not_measured_has_no_picture(
    ours: float | None, two_variants: Json, tmp_path: Path
) -> None:
    two_variants["tables"][0]["rows"][0]["p50_us"] = ours
    assert not plots.plot(two_variants, tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []


def test_the_bars_of_a_task_are_stacked_from_the_parts_of_its_time() -> None:
    chart = plots.chart(COMMITTED["task"])
    assert chart is not None
    for bar in chart.bars:
        assert sum(bar.parts.values()) == pytest.approx(bar.value, rel=0.01)


def test_a_heat_map_is_drawn_with_its_losses(result: Json, tmp_path: Path) -> None:
    cells = [
        {"tokens": tokens, "wait_s": wait_s, "all_s": 30.0, "fixed_s": 18.0 + wait_s, "best": 4, "ledger_s": 20.0}
        for tokens in (10_000, 24_000)
        for wait_s in (1.0, 3.0)
    ]
    assert statement(cells) == (
        "All at once takes 1.50 to 1.50 times as long as the token ledger, "
        "the best fixed number of tasks 0.95 to 1.05 times"
    )
    assert plots.plot({**result, "raw": {"heat_map": cells}}, tmp_path / "picture.png")


def test_equal_results_give_equal_bytes_and_other_numbers_others(two_variants: Json, tmp_path: Path) -> None:
    drawn = []
    for name in ("first", "again", "changed"):
        if name == "changed":
            two_variants["tables"][0]["rows"][0]["p50_us"] = 1000.0
        assert plots.plot(two_variants, tmp_path / name)
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_the_foot_says_when_and_where_and_whether_to_trust_it(result: Json) -> None:
    result["noise"]["noisy"] = result["quick"] = True
    foot = plots.foot(result)
    for fact in ("2026-01-02", "0123456789ab", "2 cores of a processor", "NOISY", "QUICK"):
        assert fact in foot


def test_the_page_shows_a_picture_when_it_is_there(result: Json, two_variants: Json, tmp_path: Path) -> None:
    link = "](results/2026-01-02/overhead.png)"
    runner.save(result, tmp_path)
    assert link not in runner.render(tmp_path)
    runner.save(two_variants, tmp_path)
    assert link in (tmp_path / "README.md").read_text()
    (tmp_path / "results/2026-01-02/overhead.png").unlink()
    assert link not in runner.render(tmp_path)


def test_a_picture_of_an_earlier_result_of_the_day_does_not_stay(result: Json, tmp_path: Path) -> None:
    path = tmp_path / "results/2026-01-02/overhead.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"old")
    runner.save(result, tmp_path)
    assert not path.exists()


def test_report_draws_what_has_no_picture_yet(result: Json, tmp_path: Path) -> None:
    picture = place(COMMITTED["kv"]).with_suffix(".png")
    path = tmp_path / picture.with_suffix(".json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(COMMITTED["kv"]))
    runner.main(["report", "--out", str(tmp_path)])
    assert (tmp_path / picture).exists()
    assert f"]({picture})" in (tmp_path / "README.md").read_text()


def test_nothing_is_drawn_with_before_something_is_drawn() -> None:
    code = "import sys, benchmarks.runner; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
