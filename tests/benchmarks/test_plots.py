"""Every committed result has a picture, and a picture depends on its result alone."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runner
from benchmarks.common.result import ROOT
from benchmarks.report import plots
from benchmarks.report.drawing import WIDTH_PX, Bars
from benchmarks.report.drawing_lines import Line, Lines
from benchmarks.report.pages import newest_results

Json = dict[str, Any]

COMMITTED = newest_results(runner.HERE / "results", runner.BENCHMARKS)
RUNS = [("no backpressure", 3.0, 14.0), ("toolhub, adaptive", 19.0, 3.0)]


def png_chunks(path: Path) -> dict[bytes, bytes]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks[data[at + 4 : at + 8]] = data[at + 8 : at + 8 + length]
        at += 12 + length
    return chunks


def table(title: str, columns: dict[str, str], rows: list[Json]) -> Json:
    described = [{"key": key, "label": label, "digits": 1} for key, label in columns.items()]
    return {"title": title, "columns": described, "rows": rows}


def two_variants(result: Json) -> Json:
    result["tables"][0]["rows"].append({"way": "theirs", "ms": 24.0})
    return result


@pytest.mark.parametrize("name", sorted(COMMITTED))
def test_a_committed_result_has_a_picture_of_the_right_width_without_metadata(name: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    assert plots.plot(COMMITTED[name], path)
    chunks = png_chunks(path)
    assert struct.unpack(">I", chunks[b"IHDR"][:4]) == (WIDTH_PX,)
    assert {b"tEXt", b"tIME"}.isdisjoint(chunks)


def test_equal_results_give_equal_bytes_and_other_numbers_others(result: Json, tmp_path: Path) -> None:
    two_variants(result)
    drawn = []
    for name in ("first", "again", "changed"):
        if name == "changed":
            result["tables"][0]["rows"][0]["ms"] = 1.5
        assert plots.plot(result, tmp_path / name)
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("rows", [[], [{"way": "ours", "ms": 1.0}], [{"way": "ours", "ms": None}, {"way": "theirs"}]])
def test_what_compares_nothing_has_no_picture(result: Json, tmp_path: Path, rows: list[Json]) -> None:
    result["tables"][0]["rows"] = rows
    assert not plots.plot(result, tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []


def test_a_question_without_a_drawing_of_its_own_shows_the_columns_that_have_a_unit_and_differ(result: Json) -> None:
    columns = {"way": "way", "count": "count", "ms": "p50 ms", "same": "s", "share": "% cached"}
    rows = [{"way": "a", "count": 1, "ms": 1.0, "same": 2, "share": 3}, {"way": "b", "count": 2, "ms": 2.0, "same": 2}]
    assert plots.decisive(table("T", columns, rows)) == ["ms"]
    rows[1]["share"] = 4
    assert plots.decisive(table("T", columns, rows)) == ["ms", "share"]


@pytest.mark.parametrize(
    ("question", "tables"),
    [
        (
            "storm",
            [
                table(
                    "6 tasks × 3 servers",
                    {"way": "way", "seconds": "s"},
                    [{"way": w, "seconds": s} for w, s, _ in RUNS],
                )
            ],
        ),
        (
            "density",
            [
                table(
                    "what each further idle task takes",
                    {"way": "way", "mib": "MiB"},
                    [{"way": w, "mib": m} for w, m, _ in RUNS],
                )
            ],
        ),
        (
            "overload",
            [
                table(
                    "2 runs x 60 tasks, 1 windows of 8 s, everything 1:100",
                    {"way": "way", "goodput": "answered in time/s", "p99_s": "p99 s"},
                    [{"way": variant, "goodput": goodput, "p99_s": p99} for variant, goodput, p99 in RUNS],
                ),
                table(
                    "A quiet task, 4 s",
                    {"way": "way", "p50_s": "p50 s", "p99_s": "p99 s"},
                    [{"way": "alone", "p99_s": 0.7}, {"way": "beside a burst, limit 12", "p99_s": float("nan")}],
                ),
            ],
        ),
        (
            "throughput",
            [
                table(
                    "A server",
                    {"way": "way", "at_8_per_s": "calls/s"},
                    [{"way": w, "at_8_per_s": s} for w, s, _ in RUNS],
                )
            ],
        ),
    ],
)
def test_a_result_of_a_question_that_is_not_committed_yet_has_a_picture(
    question: str, tables: list[Json], result: Json, tmp_path: Path
) -> None:
    assert plots.plot({**result, "question": question, "tables": tables}, tmp_path / "picture.png")


def lines_of(result: Json, question: str, tables: list[Json]) -> list[Lines]:
    _, bands = plots.picture({**result, "question": question, "tables": tables})
    return [band for band in bands if isinstance(band, Lines)]


def test_tasks_that_were_not_all_ready_in_time_are_no_point_of_a_line(result: Json) -> None:
    columns = {"way": "way", "seconds": "wall s", "peak_pss_mib": "peak PSS MiB", "ready": "ready", "wanted": "of"}
    rows = [
        {"way": "toolhub", "seconds": 2.0, "peak_pss_mib": 240, "ready": 3, "wanted": 3},
        {"way": "SDK", "seconds": 300.0, "peak_pss_mib": 99, "ready": 2, "wanted": 3},
        {"way": "in turn", "ready": 0, "wanted": 3},
        {"way": "together", "seconds": 4.0, "peak_pss_mib": 230, "ready": 3, "wanted": 3},
    ]
    seconds, memory = lines_of(result, "init", [table("1 task × 3 servers", columns, rows)])
    assert seconds.lines == [Line("toolhub", [(1.0, 2.0)], True), Line("together", [(1.0, 4.0)], False)]
    assert memory.lines == [Line("toolhub", [(1.0, 240.0)], True), Line("together", [(1.0, 230.0)], False)]


def test_latency_and_goodput_are_lines_over_the_load_instead_of_bars_of_one_load(result: Json) -> None:
    columns = {"way": "way", "tasks": "tasks", "goodput": "answered in time/s", "p50_s": "p50 s", "p99_s": "p99 s"}
    rows = [
        {"way": "no backpressure", "tasks": "1,200 tasks", "goodput": 0, "p99_s": None},
        {"way": "no backpressure", "tasks": 8, "goodput": 19.9, "p99_s": 1.1},
        {"way": "toolhub, adaptive", "tasks": "8 tasks", "goodput": 19.4, "p99_s": 1.2},
    ]
    one_load = [{"way": variant, "goodput": goodput, "p99_s": p99} for variant, goodput, p99 in RUNS]
    tables = [table("2 windows of 20 s, everything 1:100", columns, one_load), table("By load, 8 s", columns, rows)]
    latency, goodput = lines_of(result, "overload", tables)
    assert latency.lines == [
        Line("no backpressure", [(8, 1.1)], is_ours=False),
        Line("toolhub, adaptive", [(8, 1.2)], is_ours=True),
    ]
    # Nothing answered is a point, and the line is in the order of the load.
    assert goodput.lines[0] == Line("no backpressure", [(8, 19.9), (1200, 0)], False)
    _, bands = plots.picture({**result, "question": "overload", "tables": tables})
    assert not any(isinstance(band, Bars) for band in bands)
    _, bands = plots.picture({**result, "question": "overload", "tables": tables[:1]})
    assert [type(band) for band in bands] == [Bars]


def test_the_foot_says_when_and_where_and_whether_to_trust_it(result: Json) -> None:
    result["noise"]["noisy"] = result["quick"] = True
    foot = plots.foot(result).replace("\u00a0", " ")
    for fact in ("2026-01-02", "0123456789ab", "2 cores of a processor", "NOISY", "QUICK"):
        assert fact in foot


def test_the_page_shows_a_picture_when_it_is_there(result: Json, tmp_path: Path) -> None:
    link = "](results/2026-01-02/overhead.png)"
    runner.save(result, tmp_path)
    assert link not in runner.render(tmp_path)  # one way compares nothing
    runner.save(two_variants(result), tmp_path)
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
    path = tmp_path / "results/2026-11-21/kv.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(COMMITTED["kv"]))
    runner.main(["report", "--out", str(tmp_path)])
    assert path.with_suffix(".png").exists()
    assert "](results/2026-11-21/kv.png)" in (tmp_path / "README.md").read_text()


def test_nothing_is_drawn_with_before_something_is_drawn() -> None:
    code = "import sys, benchmarks.runner; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
