"""Bands that show where a task's time goes: swim-lanes of one task, stacked bars of the mean one, and their legend.

Colours are kinds of time here: purple for what the model takes, orange for what its tools take, each the darker the
more is done in it. So they are told apart without red and green, and in print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.report.drawing import (
    AXIS,
    BAND_TITLE,
    CHARACTER,
    DPI,
    INK,
    LABELS,
    OTHERS_TEXT,
    OURS,
    ROW,
    SIDE,
    SMALL_PT,
    WIDTH,
    Axes,
    Figure,
    name_rows,
    place_axes,
    plain_ticks,
)


class _Look(NamedTuple):
    name: str
    colour: str
    text: str


# From ColorBrewer's PuOr. In the order in which they are stacked: neighbours differ in lightness.
KINDS: Mapping[str, _Look] = {
    "queue": _Look("queued at the engine", "#D2D3E6", INK),
    "prefill": _Look("prefill", "#998EC3", INK),
    "decode": _Look("decode", "#542788", "white"),
    "tool": _Look("tool at work", "#F1A340", INK),
    "start": _Look("start-up", "#B35806", "white"),
}
LANES = ("model", "tools")
_TINTS = {True: "#EAF3F9", False: "#F3F3F3"}
# In inches. A lane is as high as its busiest moment needs.
_LANE_NAMES, _HEADING, _LANE, _STRIP, _LANE_GAP, _BLOCK_GAP = 0.6, 0.22, 0.28, 0.1, 0.04, 0.1
_PIXEL = 1 / DPI
# Of the axis: for the totals right of the last span.
_TOTAL_PART = 0.1
# Sums of the same seconds in another order are no overlap.
_ROUNDING_S = 1e-6


@dataclass(frozen=True)
class Legend:
    """What the colours of the bands below mean, in one line."""

    title = ""
    height = 0.3
    variants = len(KINDS)

    def draw(self, figure: Figure, below: float) -> None:
        width = WIDTH - 2 * SIDE
        axes = place_axes(figure, SIDE, below - BAND_TITLE, width, 0.16)
        axes.set_axis_off()
        axes.set(xlim=(0, width), ylim=(0, 1))
        left = 0.0
        for look in KINDS.values():
            _box(axes, left, 0.1, 0.24, 0.8, look.colour)
            axes.text(left + 0.31, 0.48, look.name, va="center")
            left += 0.6 + CHARACTER * len(look.name)


# --- one task, before and after -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """begin, end: seconds since the task began."""

    lane: str
    kind: str
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """One variant of doing the task."""

    label: str
    spans: Sequence[Span]
    is_ours: bool

    @property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    def strips(self, lane: str) -> list[Strip]:
        return strips([span for span in self.spans if span.lane == lane])


@dataclass(frozen=True)
class Strip:
    """Where a span stands in its lane: in part `index` of `count` equal parts, the first on top."""

    span: Span
    index: int
    count: int


def strips(spans: Sequence[Span]) -> list[Strip]:
    """Put spans that overlap below each other; one that overlaps no other has the lane for itself."""
    placed: list[Strip] = []
    together: list[tuple[Span, int]] = []
    ends: list[float] = []
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        if ends and max(ends) <= span.begin + _ROUNDING_S:
            placed += [Strip(*each, len(ends)) for each in together]
            together, ends = [], []
        free = next((index for index, end in enumerate(ends) if end <= span.begin + _ROUNDING_S), len(ends))
        ends[free : free + 1] = [span.end]
        together.append((span, free))
    return placed + [Strip(*each, len(ends)) for each in together]


@dataclass(frozen=True)
class Lanes:
    """A band with a block for each variant, each with a lane for the model and one for its tools; one axis of time."""

    title: str
    timelines: Sequence[Timeline]

    @property
    def height(self) -> float:
        return BAND_TITLE + sum(map(_block_height, self.timelines)) + AXIS

    @property
    def variants(self) -> int:
        return sum(timeline.end > 0 for timeline in self.timelines)

    def draw(self, figure: Figure, below: float) -> None:
        left = SIDE + _LANE_NAMES
        width, height = WIDTH - SIDE - left, sum(map(_block_height, self.timelines))
        axes = place_axes(figure, left, below, width, height)
        most = max(timeline.end for timeline in self.timelines) / (1 - _TOTAL_PART)
        axes.set(xlim=(0, most), ylim=(height, 0), xlabel="seconds")
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=8)
        plain_ticks(axes.xaxis)
        axes.grid(axis="x")
        names: list[tuple[float, str]] = []
        top = 0.0
        for timeline in self.timelines:
            names += _block(axes, timeline, top, most * _PIXEL / width)
            top += _block_height(timeline)
        axes.set_yticks([at for at, _ in names], [name for _, name in names], size=SMALL_PT)


def _lane_height(timeline: Timeline, lane: str) -> float:
    return max(_LANE, _STRIP * max((strip.count for strip in timeline.strips(lane)), default=1))


def _block_height(timeline: Timeline) -> float:
    return _HEADING + sum(_lane_height(timeline, lane) + _LANE_GAP for lane in LANES) + _BLOCK_GAP


def _block(axes: Axes, timeline: Timeline, top: float, pixel_s: float) -> list[tuple[float, str]]:
    """Return the middles of the lanes and their names. pixel_s: seconds that one pixel shows."""
    colour = OURS if timeline.is_ours else OTHERS_TEXT
    over_the_grid = {"facecolor": "white", "linewidth": 0, "pad": 0.5}
    axes.text(0, top + 0.16, timeline.label, weight="bold", color=colour, bbox=over_the_grid)
    begin = top = top + _HEADING
    names = []
    for lane in LANES:
        height = _lane_height(timeline, lane)
        _box(axes, 0, top, timeline.end, height, _TINTS[timeline.is_ours])
        for strip in timeline.strips(lane):
            _strip(axes, strip, top, height, pixel_s)
        names.append((top + height / 2, lane))
        top += height + _LANE_GAP
    end = top - _LANE_GAP
    axes.plot([timeline.end] * 2, [begin - 0.04, end + 0.04], color=colour, linewidth=1.2)
    text = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "weight": "bold", "color": colour}
    axes.annotate(f"{_number(timeline.end)} s", (timeline.end, (begin + end) / 2), **text)
    return names


def _strip(axes: Axes, strip: Strip, top: float, height: float, pixel_s: float) -> None:
    """What is shorter than a pixel is a pixel; half a pixel is left free before the next."""
    span, part = strip.span, min(height / strip.count, _LANE)
    width = max(span.end - span.begin - pixel_s / 2, pixel_s)
    gap = _PIXEL if strip.count > 1 else 0.0
    _box(axes, span.begin, top + strip.index * part, width, part - gap, KINDS[span.kind].colour)


def _box(axes: Axes, left: float, top: float, width: float, height: float, colour: str, alpha: float = 1) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), width, height, facecolor=colour, alpha=alpha, linewidth=0))


def _number(value: float) -> str:
    return f"{value:,.{0 if value >= 10 else 1 if value >= 1 else 2}f}"


# --- the mean task ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """One variant. parts: seconds by kind. total: of the whole task, less than its parts where these overlap."""

    label: str
    parts: Mapping[str, float]
    total: float
    is_ours: bool

    @property
    def length(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Stacks:
    """A band of bars made of kinds of time, with a mark at the total; what is beyond it is pale."""

    title: str
    stacks: Sequence[Stack]

    @property
    def height(self) -> float:
        return BAND_TITLE + len(self.stacks) * ROW + AXIS

    @property
    def variants(self) -> int:
        return sum(stack.total > 0 for stack in self.stacks)

    def draw(self, figure: Figure, below: float) -> None:
        left = SIDE + LABELS
        width = WIDTH - SIDE - left
        axes = place_axes(figure, left, below, width, len(self.stacks) * ROW)
        most = max(max(stack.length, stack.total) for stack in self.stacks) / (1 - _TOTAL_PART)
        axes.set(xlim=(0, most), ylim=(len(self.stacks) - 0.5, -0.5))
        name_rows(axes, self.stacks)
        axes.locator_params(axis="x", nbins=6)
        plain_ticks(axes.xaxis)
        axes.grid(axis="x")
        axes.set_xlabel(self._x_label, labelpad=2)
        for row, stack in enumerate(self.stacks):
            _stack(axes, row, stack, most / width)

    @property
    def _x_label(self) -> str:
        label = "seconds per task"
        if any(stack.total < 0.98 * stack.length for stack in self.stacks):
            label += "; pale beyond the mark: beside other work"
        if any(stack.total > 1.02 * stack.length for stack in self.stacks):
            label += "; thin line: anything else"
        return label


def _stack(axes: Axes, row: int, stack: Stack, inch_s: float) -> None:
    """inch_s: seconds that one inch shows."""
    left = 0.0
    for kind, look in KINDS.items():
        right = left + stack.parts.get(kind, 0.0)
        _box(axes, left, row - 0.31, right - left, 0.62, look.colour)
        text = _number(right - left)
        # Where there is room for it, clear of the mark.
        begin, end = max(((left, min(right, stack.total)), (max(left, stack.total), right)), key=lambda x: x[1] - x[0])
        if end - begin > (0.065 * len(text) + 0.05) * inch_s:
            ink = look.text if begin < stack.total else INK
            axes.text((begin + end) / 2, row, text, ha="center", va="center", size=SMALL_PT, color=ink)
        left = right
    colour = OURS if stack.is_ours else INK
    if stack.total < stack.length:
        _box(axes, stack.total, row - 0.31, stack.length - stack.total, 0.62, "white", alpha=0.6)
    else:
        axes.plot([stack.length, stack.total], [row, row], color=colour, linewidth=0.6)
    axes.plot([stack.total] * 2, [row - 0.42, row + 0.42], color=colour, linewidth=1.2)
    end_of_all = (max(stack.length, stack.total), row)
    style = {"va": "center", "size": SMALL_PT, "weight": "bold", "color": colour}
    shown = f"{_number(stack.total)} s" if stack.total else "–"
    axes.annotate(shown, end_of_all, xytext=(4, 0), textcoords="offset points", **style)
