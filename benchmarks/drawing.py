"""How pictures of results look: bands of horizontal bars, lines, one style. Knows nothing of any question.

Everything is placed in inches, so that a picture grows downwards with its rows and all its texts keep their size. The
same input gives the same bytes with the same version of matplotlib, which is imported only when something is drawn.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

# matplotlib's own types are not known to the type checker.
Axes: TypeAlias = Any
Figure: TypeAlias = Any

WIDTH_PX, DPI = 1200, 150
# Ours in one strong blue and all others in grey: told apart without seeing colours, and in print.
OURS, OTHERS, INK, FAINT = "#0072B2", "#9A9A9A", "#222222", "#DDDDDD"
_TITLE_PT, _BAND_PT, _TEXT_PT, _SMALL_PT = 12.0, 9.0, 7.5, 6.5
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": _TEXT_PT,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a label is a dollar
    "axes.labelcolor": INK,
    "axes.edgecolor": OTHERS,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.labelsize": _TEXT_PT,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": _SMALL_PT,
    "ytick.labelsize": _TEXT_PT,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "figure.facecolor": "white",
}
# In inches. The labels of the rows stand left of the first panel, the numbers at the ends of the bars within it.
_WIDTH, _SIDE, _LABELS, _GAP = WIDTH_PX / DPI, 0.2, 2.35, 0.22
_TOP, _BAND_TITLE, _ROW, _AXIS, _BOTTOM = 0.5, 0.3, 0.27, 0.5, 0.45
_LINES_HEIGHT, _LINE_LABELS, _TICK = 2.3, 2.35, 0.4
_LABEL_CHARACTERS, _FOOT_CHARACTERS, _PER_INCH = 39, 160, 19
# More than this between the least and the most: on a linear axis the least would be no bar at all.
_LOG_FROM = 30.0


@dataclass(frozen=True)
class Row:
    """One way: a value for each panel, None where there is none. group: the heading it stands under."""

    label: str
    values: Sequence[float | None]
    is_ours: bool
    group: str = ""


@dataclass(frozen=True)
class Panel:
    """One measure. label: with its unit. digits: of the numbers at the bars."""

    label: str
    digits: int = 0


@dataclass(frozen=True)
class Bars:
    """A band of panels side by side that share their rows."""

    title: str
    panels: Sequence[Panel]
    rows: Sequence[Row]

    @property
    def slots(self) -> list[Row | str]:
        """What stands below each other: rows and the headings of their groups."""
        slots: list[Row | str] = []
        group = ""
        for row in self.rows:
            if row.group != group:
                slots.append(row.group)
            slots.append(row)
            group = row.group
        return slots

    @property
    def height(self) -> float:
        return _BAND_TITLE + len(self.slots) * _ROW + _AXIS


@dataclass(frozen=True)
class Line:
    """Points of one way, from left to right."""

    label: str
    points: Sequence[tuple[float, float]]
    is_ours: bool


@dataclass(frozen=True)
class Lines:
    """A band with one panel, both of its axes logarithmic."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]

    height = _BAND_TITLE + _LINES_HEIGHT + _AXIS


def draw(title: str, bands: Sequence[Bars | Lines], foot: str, path: Path) -> None:
    """Write the picture, `WIDTH_PX` wide. foot: a line in small type at the bottom."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        height = _TOP + sum(band.height for band in bands) + _BOTTOM
        figure = NewFigure(figsize=(_WIDTH, height), dpi=DPI)
        FigureCanvasAgg(figure)
        _text(figure, _SIDE, 0.32, title, size=_TITLE_PT, weight="bold")
        below = _TOP
        for band in bands:
            _text(figure, _SIDE, below + 0.2, textwrap.shorten(band.title, 110), size=_BAND_PT, weight="bold")
            if isinstance(band, Bars):
                _bars(figure, band, below + _BAND_TITLE)
            else:
                _lines(figure, band, below + _BAND_TITLE)
            below += band.height
        lines = textwrap.wrap(foot, _FOOT_CHARACTERS)
        _text(figure, _SIDE, height - 0.1, "\n".join(lines), size=_SMALL_PT, color="#666666")
        figure.savefig(path, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True})


def _text(figure: Figure, left: float, below: float, text: str, **style: object) -> None:
    """Its last line stands `below` inches below the top."""
    figure.text(left / _WIDTH, 1 - below / figure.get_figheight(), text, va="bottom", **style)


def _axes(figure: Figure, left: float, below: float, width: float, height: float) -> Axes:
    whole = figure.get_figheight()
    return figure.add_axes((left / _WIDTH, 1 - (below + height) / whole, width / _WIDTH, height / whole))


def _bars(figure: Figure, band: Bars, below: float) -> None:
    slots = band.slots
    room = _WIDTH - 2 * _SIDE - _LABELS - _GAP * (len(band.panels) - 1)
    width = room / len(band.panels)
    for index, panel in enumerate(band.panels):
        left = _SIDE + _LABELS + index * (width + _GAP)
        axes = _axes(figure, left, below, width, len(slots) * _ROW)
        _panel(axes, panel, index, slots, width)
        axes.set_ylim(len(slots) - 0.5, -0.5)
        if index:
            axes.set_yticks([])
        else:
            _row_labels(axes, slots)


def _row_labels(axes: Axes, slots: Sequence[Row | str]) -> None:
    texts = [slot if isinstance(slot, str) else _wrapped(slot.label) for slot in slots]
    axes.set_yticks(range(len(slots)), texts, linespacing=1.0)
    for tick, slot in zip(axes.get_yticklabels(), slots, strict=True):
        if isinstance(slot, str):
            tick.set_weight("bold")
            tick.set_size(_SMALL_PT)
        elif slot.is_ours:
            tick.set_color(OURS)
        if isinstance(slot, Row) and "\n" in tick.get_text():
            tick.set_size(_SMALL_PT)


def _wrapped(label: str) -> str:
    """Two lines at most: there is no room for more."""
    if len(label) <= _LABEL_CHARACTERS:
        return label
    halves = textwrap.wrap(label, len(label) // 2 + 6)
    if len(halves) > 2:
        halves = textwrap.wrap(label, _LABEL_CHARACTERS + 6, max_lines=2, placeholder=" …")
    return "\n".join(halves)


def _panel(axes: Axes, panel: Panel, index: int, slots: Sequence[Row | str], width: float) -> None:
    """The bars of one measure. width: in inches; what the numbers take at the ends of the bars is a part of it."""
    values = {slot: number for slot, row in enumerate(slots) if isinstance(row, Row) and (number := _at(row, index))}
    known = list(values.values())
    texts = {slot: f"{number:,.{0 if number >= 100 else panel.digits}f}" for slot, number in values.items()}
    is_log = bool(known) and max(known) / min(known) > _LOG_FROM
    part = min(0.5, (0.12 + 0.06 * max(map(len, texts.values()), default=0)) / width)
    left = _scale(axes, known, part, width, is_log=is_log)
    for slot, row in enumerate(slots):
        if isinstance(row, str):
            continue
        number = values.get(slot)
        shown = texts.get(slot, "0" if _is_zero(row, index) else "–")
        if number is not None:
            colour = OURS if row.is_ours else OTHERS
            axes.barh(slot, number - left, left=left, height=0.62, color=colour, linewidth=0)
        axes.annotate(
            shown,
            (number if number is not None else left, slot),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            size=_SMALL_PT,
            color=OURS if row.is_ours else INK,
        )
    axes.set_xlabel(textwrap.fill(panel.label + (" (log)" if is_log else ""), int(width * _PER_INCH)), labelpad=2)
    axes.grid(axis="x")


def _at(row: Row, index: int) -> float | None:
    """None, too, of what cannot be a bar."""
    value = row.values[index]
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _is_zero(row: Row, index: int) -> bool:
    return row.values[index] == 0


def _scale(axes: Axes, known: Sequence[float], part: float, width: float, *, is_log: bool) -> float:
    """Set the limits so that `part` of the axis is free at the right. Return where bars begin. width: in inches."""
    if not is_log:
        axes.set_xlim(0, max(known, default=1) / (1 - part))
        axes.locator_params(axis="x", nbins=4)
        _plain_ticks(axes.xaxis)
        return 0.0
    least, most = math.log10(min(known)), math.log10(max(known))
    # At a power of ten that leaves a bar to the least, too.
    begin = math.floor(least - 0.3)
    axes.set_xscale("log")
    axes.set_xlim(10**begin, 10 ** (begin + (most - begin) / (1 - part)))
    step = math.ceil(_TICK * (most - begin) / (width * (1 - part)))
    axes.set_xticks([10.0**power for power in range(begin, math.floor(most) + 1, step)])
    axes.set_xticks([], minor=True)
    _plain_ticks(axes.xaxis)
    return float(10.0**begin)


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):,g}{letter}"
    return f"{value:,g}"


def _lines(figure: Figure, band: Lines, below: float) -> None:
    left = _SIDE + 0.6
    axes = _axes(figure, left, below, _WIDTH - _SIDE - left - _LINE_LABELS, _LINES_HEIGHT)
    for axis in ("x", "y"):
        getattr(axes, f"set_{axis}scale")("log")
    for line in band.lines:
        style = {"color": OURS if line.is_ours else OTHERS, "linewidth": 2.0 if line.is_ours else 1.4}
        axes.plot(*zip(*line.points, strict=True), marker="o", markersize=4, clip_on=False, **style)
    stops = sorted({x for line in band.lines for x, _ in line.points})
    axes.set_xticks(stops, [f"{x:,g}" for x in stops])
    axes.set_xticks([], minor=True)
    axes.tick_params(axis="x", labelsize=_TEXT_PT)
    axes.yaxis.set_minor_formatter("")
    _plain_ticks(axes.yaxis)
    axes.grid(axis="y")
    axes.set_xlabel(band.x_label)
    axes.set_ylabel(band.y_label)
    _name_lines(axes, band.lines)


def _name_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """Right of their last points, moved apart where these are close; above them where a line ends before the others."""
    low, high = (math.log10(limit) for limit in axes.get_ylim())
    last = max(line.points[-1][0] for line in lines)
    ends = sorted((line for line in lines if line.points[-1][0] == last), key=lambda line: line.points[-1][1])
    places = _apart([(math.log10(line.points[-1][1]) - low) / (high - low) for line in ends], 0.085)
    for line, place in zip(ends, places, strict=True):
        leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4}
        where = {"xytext": (1.04, place), "textcoords": "axes fraction", "va": "center", "arrowprops": leader}
        _name(axes, line, **where)
    for line in lines:
        if line not in ends:
            _name(axes, line, xytext=(0, 6), textcoords="offset points", ha="center")


def _name(axes: Axes, line: Line, **where: object) -> None:
    x, y = line.points[-1]
    colour = OURS if line.is_ours else "#555555"
    axes.annotate(f"{line.label}: {y:,.3g}", (x, y), color=colour, annotation_clip=False, **where)


def _apart(places: Sequence[float], least: float) -> list[float]:
    """Sorted places, each at least so far from the one before it; moved down as a whole where they leave the top."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least) if moved else place)
    over = max(0.0, moved[-1] - 1.0) if moved else 0.0
    return [place - over for place in moved]
