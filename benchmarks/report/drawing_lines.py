"""Bands of lines: one line for each variant, with its name at the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report.drawing import (
    AXIS,
    BAND_TITLE,
    CHARACTER,
    FAINT,
    OTHERS,
    OTHERS_TEXT,
    OURS,
    SIDE,
    SMALL_PT,
    TEXT_PT,
    WIDTH,
    Axes,
    Figure,
    place_axes,
    plain_ticks,
    wrapped,
)

_MARKERS = "osD^v"
# In inches.
_LINES_HEIGHT, _LEADER = 1.8, 0.25
_LINE_CHARACTERS, _END_CHARACTERS = 46, 10


@dataclass(frozen=True)
class Line:
    """Points of one variant, from left to right."""

    label: str
    points: Sequence[tuple[float, float]]
    is_ours: bool


@dataclass(frozen=True)
class Lines:
    """A band with one panel. unit: what follows the number at a line's end, with a space where there is one."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    unit: str = ""
    is_log: bool = False
    """Of both axes, so that what grows in proportion is straight in either case. Linear ones begin at 0."""

    @property
    def height(self) -> float:
        return BAND_TITLE + _LINES_HEIGHT + AXIS

    @property
    def variants(self) -> int:
        return len(self.lines)

    def name(self, line: Line) -> str:
        """With its last number."""
        y = line.points[-1][1]
        return wrapped(f"{line.label}: {y:{',.0f' if y >= 100 else '.3g'}}{self.unit}", _LINE_CHARACTERS)

    def draw(self, figure: Figure, below: float) -> None:
        left = SIDE + 0.6
        # The same in all bands with these lines, whatever their numbers.
        characters = min(_LINE_CHARACTERS, max(len(line.label) for line in self.lines) + _END_CHARACTERS)
        width = WIDTH - SIDE - left - (_LEADER + characters * CHARACTER)
        axes = place_axes(figure, left, below, width, _LINES_HEIGHT)
        for line, marker in zip(self.lines, itertools.cycle(_MARKERS)):
            style = {"color": OURS if line.is_ours else OTHERS, "linewidth": 2.0 if line.is_ours else 1.4}
            axes.plot(*zip(*line.points, strict=True), marker=marker, markersize=4.5, clip_on=False, **style)
        _scale_lines(axes, self)
        _name_lines(axes, self)


def _scale_lines(axes: Axes, band: Lines) -> None:
    from matplotlib.ticker import LogLocator

    if band.is_log:
        axes.set(xscale="log", yscale="log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
        axes.yaxis.set_minor_formatter("")
    else:
        axes.set(xlim=(0, None), ylim=(0, None))
        axes.locator_params(axis="y", nbins=5)
    stops = sorted({x for line in band.lines for x, _ in line.points})
    axes.set_xticks(stops, [f"{x:,g}" for x in stops], size=TEXT_PT)
    axes.set_xticks([], minor=True)
    plain_ticks(axes.yaxis)
    axes.grid(axis="y")
    axes.set(xlabel=band.x_label, ylabel=band.y_label + (" (log)" if band.is_log else ""))


def _name_lines(axes: Axes, band: Lines) -> None:
    """Right of their last points, moved apart where these are close; above them where a line ends before the others."""
    to_axes = axes.transData + axes.transAxes.inverted()
    last = max(line.points[-1][0] for line in band.lines)
    ends = sorted((line for line in band.lines if line.points[-1][0] == last), key=lambda line: line.points[-1][1])
    places = _apart([to_axes.transform(line.points[-1])[1] for line in ends], 0.19 / _LINES_HEIGHT)
    for line, place in zip(ends, places, strict=True):
        leader = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4}
        where = {"xytext": (1.04, place), "textcoords": "axes fraction", "va": "center", "arrowprops": leader}
        _name(axes, band, line, **where)
    for line in band.lines:
        if line not in ends:
            _name(axes, band, line, xytext=(0, 6), textcoords="offset points", ha="center")


def _name(axes: Axes, band: Lines, line: Line, **where: object) -> None:
    text = band.name(line)
    style = {"color": OURS if line.is_ours else OTHERS_TEXT, "size": SMALL_PT if "\n" in text else TEXT_PT}
    axes.annotate(text, line.points[-1], annotation_clip=False, **style, **where)


def _apart(places: Sequence[float], least: float) -> list[float]:
    """Sorted places, each at least so far from the one before it; moved down as a whole where they leave the top."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least) if moved else place)
    over = max(0.0, moved[-1] - 1.0) if moved else 0.0
    return [place - over for place in moved]
