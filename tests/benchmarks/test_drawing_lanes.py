"""Pictures of a task's time: everything in them is seen, nothing is larger than it is, and no text is cut."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from benchmarks import runner
from benchmarks.report import plots
from benchmarks.report.drawing import DPI, STYLE, WIDTH_PX, Band, Bars, compose
from benchmarks.report.drawing_lanes import KINDS, Lanes, Legend, Span, Stack, Stacks, Strip, Timeline, strips
from benchmarks.report.drawing_lines import Line, Lines
from benchmarks.report.pages import newest_results

Json = dict[str, Any]

COMMITTED = newest_results(runner.HERE / "results", runner.BENCHMARKS)
PARTS = {"queue_s": 1.0, "prefill_s": 20.0, "decode_s": 30.0, "tools_s": 15.0, "start_s": 5.0}
TASK_COLUMNS = [{"key": key, "label": key, "digits": 1} for key in ("way", *PARTS, "task_s")]


def tool(begin: float, end: float, kind: str = "tool") -> Span:
    return Span("tools", kind, begin, end)


def one_after_another(count: int, variant: str = "one after another") -> Timeline:
    return Timeline(variant, [tool(2 * number, 2 * number + 1.5) for number in range(count)], is_ours=False)


def at_once(count: int) -> Timeline:
    return Timeline("toolhub", [tool(0, 1.5 + number) for number in range(count)], is_ours=True)


def time_table(title: str) -> Json:
    rows = [
        {"way": "process per call (MiroFlow)", **PARTS, "task_s": 71.0},
        {"way": "toolhub", **PARTS, "start_s": None, "task_s": 43.0},
    ]
    return {"title": title, "columns": TASK_COLUMNS, "rows": rows}


@pytest.fixture
def task(result: Json) -> Json:
    """A result of the question `task`."""
    spans = [
        {"lane": "model", "kind": "prefill", "begin": 0.0, "end": 4.0},
        {"lane": "model", "kind": "decode", "begin": 4.0, "end": 9.0},
        {"lane": "tools", "kind": "start", "begin": 9.0, "end": 10.0},
        {"lane": "tools", "kind": "tool", "begin": 10.0, "end": 71.0},
    ]
    lanes = [
        {"way": "process per call (MiroFlow)", "is_ours": False, "spans": spans},
        {"way": "toolhub", "is_ours": True, "spans": spans[:2]},
    ]
    tables = [time_table(f"Where the time goes: engine {number}") for number in range(4)]
    return {**result, "question": "task", "raw": {"lanes": lanes}, "tables": tables}


@pytest.fixture
def style() -> Iterator[None]:
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        yield


def boxes(band: Band, kind: str) -> list[Rectangle]:
    """Those of one kind, as they are drawn; in pixels."""
    (axes,) = compose("T", [band], "").axes
    found = [patch for patch in axes.patches if to_hex(patch.get_facecolor()) == KINDS[kind].colour.lower()]
    for box in found:
        (left, top), (right, bottom) = axes.transData.transform([box.get_xy(), (box.get_x() + box.get_width(), 0)])
        box.set_bounds(left, box.get_y(), right - left, box.get_height())
    return found


def texts(*bands: Band) -> list[str]:
    figure = compose("T", bands, "")
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


def test_spans_that_overlap_stand_below_each_other_and_others_have_the_lane() -> None:
    alone, first, second, third = tool(0, 1), tool(2, 6), tool(3, 4), tool(5, 7)
    assert strips([third, second, first, alone]) == [
        Strip(alone, 0, 1),
        Strip(first, 0, 2),
        Strip(second, 1, 2),
        Strip(third, 1, 2),
    ]


def test_no_two_spans_of_a_crowd_cover_each_other() -> None:
    crowd = [tool(begin, begin + 1 + begin * 7 % 5) for begin in range(40)]
    placed = strips(crowd)
    assert sorted(strip.span.begin for strip in placed) == list(range(40))
    for one, other in itertools.combinations(placed, 2):
        if one.span.begin < other.span.end and other.span.begin < one.span.end:
            assert one.index != other.index
            assert one.count == other.count


def test_what_begins_where_the_other_ends_is_no_overlap_whatever_the_rounding() -> None:
    placed = strips([tool(0.0, 0.1 + 0.2, "start"), tool(0.3, 1.0)])
    assert [strip.count for strip in placed] == [1, 1]


def test_a_lane_is_as_high_as_its_busiest_moment_needs() -> None:
    calm, busy = (Lanes("T", [one_after_another(9), timeline]) for timeline in (one_after_another(9), at_once(9)))
    assert busy.height > calm.height


@pytest.mark.usefixtures("style")
def test_calls_at_once_have_heights_of_their_own_in_the_picture() -> None:
    drawn = boxes(Lanes("T", [at_once(9)]), "tool")
    assert len({round(box.get_y(), 6) for box in drawn}) == 9
    assert all(2 < box.get_height() * DPI for box in drawn)


@pytest.mark.usefixtures("style")
def test_a_call_of_a_millisecond_is_a_hairline_and_one_of_seconds_is_as_long_as_it_was() -> None:
    long, short = Timeline("a", [tool(0, 60)], False), Timeline("b", [tool(10, 10.001), tool(20, 40)], True)
    whole, hairline, third = boxes(Lanes("T", [long, short]), "tool")
    assert hairline.get_width() == pytest.approx(1)
    assert third.get_width() == pytest.approx(whole.get_width() / 3, abs=1)


@pytest.mark.usefixtures("style")
def test_each_variant_ends_with_its_total_on_one_axis_of_seconds() -> None:
    lanes = Lanes("T", [Timeline("a", [tool(0, 71.2)], False), Timeline("b", [tool(0, 0.5)], True)])
    assert {"71 s", "0.50 s", "seconds", "model", "tools", "a", "b"} <= set(texts(lanes))
    assert len(compose("T", [lanes], "").axes) == 1


@pytest.mark.usefixtures("style")
def test_parts_of_a_stack_have_the_length_of_their_seconds_and_the_total_stands_at_the_end() -> None:
    parts = {"queue": 1.0, "prefill": 20.0, "decode": 40.0, "tool": 10.0, "start": 0.0}
    stacks = Stacks("T", [Stack("a", parts, 71.0, False), Stack("b", parts, 71.0, True)])
    (prefill, _), (decode, _) = boxes(stacks, "prefill"), boxes(stacks, "decode")
    assert decode.get_width() == pytest.approx(2 * prefill.get_width())
    assert decode.get_x() == pytest.approx(prefill.get_x() + prefill.get_width())
    assert {"71 s", "20", "40", "seconds per task"} <= set(texts(stacks))


@pytest.mark.parametrize(("total", "says"), [(50.0, "beside other work"), (90.0, "anything else")])
@pytest.mark.usefixtures("style")
def test_a_total_that_is_not_the_sum_of_its_parts_is_explained(total: float, says: str) -> None:
    parts = {"decode": 40.0, "tool": 30.0}
    (label,) = [text for text in texts(Stacks("T", [Stack("a", parts, total, True)])) if "per task" in text]
    assert says in label


def test_kinds_that_stand_side_by_side_differ_in_lightness() -> None:
    def lightness(kind: str) -> float:
        red, green, blue = matplotlib.colors.to_rgb(KINDS[kind].colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert all(abs(lightness(one) - lightness(other)) > 0.2 for one, other in itertools.pairwise(KINDS))


def test_a_task_has_lanes_and_at_most_three_tables_under_one_legend(task: Json) -> None:
    _, bands = plots.picture(task)
    assert [type(band) for band in bands] == [Legend, Lanes, Stacks, Stacks, Stacks]
    assert [band.title for band in bands[2:]] == [f"Where the time goes: engine {number}" for number in range(3)]
    stacks = bands[2]
    assert isinstance(stacks, Stacks)
    assert stacks.stacks[1] == Stack(
        "toolhub", {"queue": 1.0, "prefill": 20.0, "decode": 30.0, "tool": 15.0, "start": 0.0}, 43.0, True
    )


def test_a_task_without_lanes_has_the_rest_and_without_both_what_any_question_has(task: Json) -> None:
    del task["raw"]["lanes"]
    assert [type(band) for band in plots.picture(task)[1]] == [Legend, Stacks, Stacks, Stacks]
    task["tables"] = [
        {**time_table("Something else"), "columns": [{**TASK_COLUMNS[0]}, {**TASK_COLUMNS[-1], "label": "s"}]}
    ]
    assert [type(band) for band in plots.picture(task)[1]] == [Bars]


def test_lanes_of_one_variant_compare_nothing(task: Json, tmp_path: Path) -> None:
    del task["raw"]["lanes"][0], task["tables"][:]
    assert not plots.plot(task, tmp_path / "picture.png")


def test_the_picture_of_a_task_has_the_width_of_all(task: Json, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    assert plots.plot(task, path)
    assert struct.unpack(">I", path.read_bytes()[16:20]) == (WIDTH_PX,)


def assert_no_text_is_cut(title: str, bands: plots.Bands, foot: str) -> None:
    figure = compose(title, bands, foot)
    around, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert (around.x0, around.y0) >= (0, 0)
    assert around.x1 <= width
    assert around.y1 <= height


@pytest.mark.parametrize("name", sorted(COMMITTED))
@pytest.mark.usefixtures("style")
def test_no_text_of_a_committed_result_is_cut(name: str) -> None:
    title, bands = plots.picture(COMMITTED[name])
    assert_no_text_is_cut(title, bands, plots.foot(COMMITTED[name]))


@pytest.mark.usefixtures("style")
def test_long_names_are_not_cut() -> None:
    variant = "process per call, one after another, as MiroFlow does it today with the plain SDK"
    bands: list[Band] = [
        Lanes("T", [one_after_another(30, variant), at_once(12)]),
        Stacks("T", [Stack(variant, {"decode": 40.0}, total, False) for total in (30.0, 1234.0)]),
        Lines(
            "T", "tasks", "MiB", [Line(f"{variant} {n}", [(1, 1), (20, n)], n > 99) for n in (2, 7325)], " MiB", True
        ),
    ]
    assert_no_text_is_cut("T", [Legend(), *bands], "foot")
