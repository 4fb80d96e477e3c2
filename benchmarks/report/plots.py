"""Pictures of results. Each has one statement as its title and one chart that shows it: bars, or a heat map.

A claim (see `claims`) says what the statement is and where its numbers are. Axes begin at zero and are linear, so that
a length is a number. A result in which the claim does not hold has no picture: the tables say what was measured.
"""

from __future__ import annotations

import importlib.util
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.result import Json
from benchmarks.report.claims import CLAIMS
from benchmarks.report.headline import HeadlineRow, find
from benchmarks.report.heat_map import draw_heat_map
from benchmarks.report.pages import quantity

# Ours is strong blue and all others are grey, so that they differ without colours, too.
_OURS, _OTHERS, _FAINT = "#0072B2", "#9A9A9A", "#666666"
# From ColorBrewer's PuOr: purple for what the model takes, orange for what the tools take.
_PARTS = {
    "queue_s": ("queued at the engine", "#D2D3E6"),
    "prefill_s": ("prefill", "#998EC3"),
    "decode_s": ("decode", "#542788"),
    "tools_s": ("tools at work", "#F1A340"),
    "start_s": ("starting tools", "#B35806"),
}
_LEAST_GAIN = 1.1
"""A smaller gain gets no picture."""
_STYLE = {"font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False}
_WIDTH_IN, _DPI = 8.0, 150


@dataclass(frozen=True)
class ChartBar:
    """One bar. parts: seconds by key, for a stacked bar."""

    label: str
    value: float
    is_ours: bool
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """One picture. statement: the title. about: what was measured. unit: of the bars' values."""

    statement: str
    about: str
    unit: str
    bars: list[ChartBar]


def plot(result: Json, path: Path) -> bool:
    """Draw the result. False if it has no picture, or if there is no matplotlib to draw it with."""
    cells, drawn = result["raw"].get("heat_map"), chart(result)
    if not (cells or drawn) or importlib.util.find_spec("matplotlib") is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with _figure(path, 3.6 if cells else _height(drawn)) as figure:
        if cells:
            draw_heat_map(figure, cells, foot(result))
        elif drawn is not None:
            _draw(figure, drawn, foot(result))
    return True


def chart(result: Json) -> Chart | None:
    """The first claim of the question that has a statement and holds; None if there is none."""
    for claim in CLAIMS:
        if claim.statement and (row := find(claim, {result["question"]: result})) and row.gain >= _LEAST_GAIN:
            today, ours = (quantity(value, claim.unit) for value in (row.today, row.ours))
            return Chart(claim.statement.format(today=today, ours=ours), row.what, claim.unit, _bars(row))
    return None


def _bars(row: HeadlineRow) -> list[ChartBar]:
    """Return the bars, the worst first."""
    claim = row.claim
    if not claim.rows:
        label = "toolhub" if claim.today.who else row.ours_label
        return [ChartBar(row.who, row.today, False), ChartBar(label, row.ours, True)]
    named = row.table["columns"][0]["key"]
    found = []
    for cells in row.table["rows"]:
        label, value = str(cells[named]).replace("`", ""), cells.get(claim.ours.key)
        if re.search(claim.rows, label) and value:
            parts = {key: cells[key] for key in _PARTS if cells.get(key)}
            is_ours = "toolhub" in label or bool(re.search(claim.ours.row, label))
            found.append(ChartBar(label, value * claim.times, is_ours, parts))
    return sorted(found, key=lambda bar: bar.value, reverse=not claim.is_rate)


def foot(result: Json) -> str:
    """Return when and where it was measured, and with what result, shorter than on the page."""
    machine, noise, git = result["machine"], result["noise"], result["git"]
    parts = [
        f"{result['command']}, {result['date'][:10]}",
        f"revision {git['revision'][:12] or 'unknown'}{' with local changes' if git['dirty'] else ''}",
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB",
    ]
    if noise["noisy"]:
        parts.append(f"NOISY: others used {noise['others_cpu_percent']:.0f} % of a core")
    if result["quick"]:
        parts.append("QUICK RUN: indicative only")
    return " · ".join(parts)


@contextmanager
def _figure(path: Path, height: float) -> Iterator[Any]:
    """An empty figure, saved at the end. Equal figures give the same bytes with the same version of matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        figure = Figure(figsize=(_WIDTH_IN, height), dpi=_DPI, layout="constrained")
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.12, h_pad=0.08)
        yield figure
        figure.savefig(path, format="png", metadata={"Software": None})


def _height(drawn: Chart | None) -> float:
    bars = drawn.bars if drawn is not None else []
    return 1.2 + 0.42 * len(bars) + 0.4 * any(bar.parts for bar in bars)


def _draw(figure: Any, drawn: Chart, foot: str) -> None:
    figure.suptitle(textwrap.fill(drawn.statement, 80), x=0.01, ha="left", size=12, weight="bold")
    figure.supxlabel(textwrap.fill(foot, 130), x=0.01, ha="left", size=7, color=_FAINT)
    axes = figure.add_subplot()
    axes.set_title(drawn.about, loc="left", size=9)
    _stack(axes, drawn) if any(bar.parts for bar in drawn.bars) else _plain(axes, drawn)
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    for tick, bar in zip(axes.get_yticklabels(), drawn.bars, strict=True):
        tick.set_color(_OURS if bar.is_ours else "black")


def _labels(drawn: Chart) -> list[str]:
    return [textwrap.fill(bar.label, 36) for bar in drawn.bars]


def _plain(axes: Any, drawn: Chart) -> None:
    colours = [_OURS if bar.is_ours else _OTHERS for bar in drawn.bars]
    bars = axes.barh(_labels(drawn), [bar.value for bar in drawn.bars], color=colours, height=0.62)
    axes.bar_label(bars, [quantity(bar.value, drawn.unit) for bar in drawn.bars], padding=4)


def _stack(axes: Any, drawn: Chart) -> None:
    left = [0.0] * len(drawn.bars)
    for key, (name, colour) in _PARTS.items():
        widths = [bar.parts.get(key, 0.0) for bar in drawn.bars]
        bars = axes.barh(_labels(drawn), widths, left=left, color=colour, height=0.62, label=name)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.bar_label(bars, [quantity(bar.value, drawn.unit) for bar in drawn.bars], padding=4, weight="bold")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.02), ncols=len(_PARTS), frameon=False, fontsize=8)
