"""How pictures of results look: bands below each other, one style. Knows nothing of any question.

Here are bands of horizontal bars; others are in `drawing_lines` and `drawing_lanes`. Everything is placed in
inches, so that a picture grows downwards with its rows and all its texts keep their size. The same input gives the
same bytes with the same version of matplotlib, which is imported only when something is drawn.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

# matplotlib's own types are not known to the type checker.
Axes: TypeAlias = Any
Figure: TypeAlias = Any

WIDTH_PX, DPI = 1200, 150
# Ours in one strong blue and all others in grey: told apart without seeing colours, and in print.
OURS, OTHERS, OTHERS_TEXT, INK, FAINT = "#0072B2", "#9A9A9A", "#555555", "#222222", "#DDDDDD"
_TITLE_PT, _BAND_PT, TEXT_PT, SMALL_PT = 12.0, 9.0, 7.5, 6.5
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": TEXT_PT,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a label is a dollar
    "axes.labelcolor": INK,
    "axes.edgecolor": OTHERS,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.labelsize": TEXT_PT,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": SMALL_PT,
    "ytick.labelsize": TEXT_PT,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "figure.facecolor": "white",
}
# In inches. The labels of the rows stand left of the first panel, the numbers at the ends of the bars within it.
WIDTH, SIDE, LABELS, _GAP = WIDTH_PX / DPI, 0.2, 2.35, 0.22
_TOP, BAND_TITLE, ROW, AXIS, _BOTTOM = 0.5, 0.3, 0.27, 0.5, 0.35
_TICK = 0.4
_LABEL_CHARACTERS, _FOOT_CHARACTERS, _PER_INCH = 39, 160, 19
# The mean width of one in a text of the usual size.
CHARACTER = 0.054
# More than this between the least and the most: on a linear axis the least would be no bar at all.
_LOG_FROM = 30.0


class Band(Protocol):
    """A part of a picture, over its whole width."""

    @property
    def title(self) -> str: ...

    @property
    def height(self) -> float:
        """In inches, with its title."""

    @property
    def variants(self) -> int:
        """How many variants have a number. A band with only one is left out: it compares nothing."""

    def draw(self, figure: Figure, below: float) -> None:
        """Draw all but the title. below: inches from the top of the picture, where the title ends."""


class Labelled(Protocol):
    """What has its name left of the axis."""

    @property
    def label(self) -> str: ...

    @property
    def is_ours(self) -> bool: ...


def draw(title: str, bands: Sequence[Band], foot: str, path: Path) -> None:
    """Write the picture, `WIDTH_PX` wide. foot: a line in small type at the bottom."""
    import matplotlib

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = compose(title, bands, foot)
        figure.savefig(path, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True})


def compose(title: str, bands: Sequence[Band], foot: str) -> Figure:
    """The picture before it is written; to be called within its style."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    height = _TOP + sum(band.height for band in bands) + _BOTTOM
    figure = NewFigure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    place_text(figure, SIDE, 0.32, title, size=_TITLE_PT, weight="bold")
    below = _TOP
    for band in bands:
        place_text(figure, SIDE, below + 0.2, textwrap.shorten(band.title, 110), size=_BAND_PT, weight="bold")
        band.draw(figure, below + BAND_TITLE)
        below += band.height
    lines = textwrap.wrap(foot, _FOOT_CHARACTERS)
    place_text(figure, SIDE, height - 0.1, "\n".join(lines), size=SMALL_PT, color="#666666")
    return figure


def place_text(figure: Figure, left: float, below: float, text: str, **style: object) -> None:
    """Its last line stands `below` inches below the top."""
    figure.text(left / WIDTH, 1 - below / figure.get_figheight(), text, va="bottom", **style)


def place_axes(figure: Figure, left: float, below: float, width: float, height: float) -> Axes:
    """All in inches; below: from the top of the picture to theirs."""
    whole = figure.get_figheight()
    return figure.add_axes((left / WIDTH, 1 - (below + height) / whole, width / WIDTH, height / whole))


def name_rows(axes: Axes, rows: Sequence[Labelled | str]) -> None:
    """Left of the axis, the first at 0 and on top; a text is a heading."""
    texts = [row if isinstance(row, str) else wrapped(row.label) for row in rows]
    axes.set_yticks(range(len(rows)), texts, linespacing=1.0)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        if isinstance(row, str):
            tick.set(weight="bold", size=SMALL_PT)
            continue
        if row.is_ours:
            tick.set_color(OURS)
        if "\n" in tick.get_text():
            tick.set_size(SMALL_PT)


def wrapped(label: str, most: int = _LABEL_CHARACTERS) -> str:
    """Two lines at most: there is no room for more."""
    if len(label) <= most:
        return label
    halves = textwrap.wrap(label, len(label) // 2 + 6)
    if len(halves) > 2:
        halves = textwrap.wrap(label, most + 6, max_lines=2, placeholder=" …")
    return "\n".join(halves)


def plain_ticks(axis: Any) -> None:
    """Numbers as people write them."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):,g}{letter}"
    return f"{value:,g}"


# --- horizontal bars ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One variant: a value for each panel, None where there is none. group: the heading it stands under."""

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
        return BAND_TITLE + len(self.slots) * ROW + AXIS

    @property
    def variants(self) -> int:
        return sum(any(value is not None for value in row.values) for row in self.rows)

    def draw(self, figure: Figure, below: float) -> None:
        slots = self.slots
        room = WIDTH - 2 * SIDE - LABELS - _GAP * (len(self.panels) - 1)
        width = room / len(self.panels)
        for index, panel in enumerate(self.panels):
            left = SIDE + LABELS + index * (width + _GAP)
            axes = place_axes(figure, left, below, width, len(slots) * ROW)
            _panel(axes, panel, index, slots, width)
            axes.set_ylim(len(slots) - 0.5, -0.5)
            if index:
                axes.set_yticks([])
            else:
                name_rows(axes, slots)


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
            size=SMALL_PT,
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
        plain_ticks(axes.xaxis)
        return 0.0
    least, most = math.log10(min(known)), math.log10(max(known))
    # At a power of ten that leaves a bar to the least, too.
    begin = math.floor(least - 0.3)
    axes.set_xscale("log")
    axes.set_xlim(10**begin, 10 ** (begin + (most - begin) / (1 - part)))
    step = math.ceil(_TICK * (most - begin) / (width * (1 - part)))
    axes.set_xticks([10.0**power for power in range(begin, math.floor(most) + 1, step)])
    axes.set_xticks([], minor=True)
    plain_ticks(axes.xaxis)
    return float(10.0**begin)
