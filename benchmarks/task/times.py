"""Where the time of a played task went: pure arithmetic on when its turns and calls began and ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Self

from benchmarks.common.result import Json

Interval = tuple[float, float]


@dataclass(frozen=True)
class TurnTimes:
    """When the request was sent, and when its first and last pieces of text came; tokens as the engine counts."""

    begin: float
    first: float
    end: float
    prompt: int
    cached: int
    written: int


@dataclass(frozen=True)
class CallTimes:
    """One call. seconds: the tool's own, at the end of the call. The time before is spent on reaching the tool."""

    begin: float
    end: float
    seconds: float
    kind: str

    @property
    def own(self) -> Interval:
        return max(self.begin, self.end - self.seconds), self.end


@dataclass
class TaskTimes:
    """Seconds since all tasks began. The task itself ends with its last turn."""

    turns: list[TurnTimes] = field(default_factory=list)
    calls: list[CallTimes] = field(default_factory=list)

    @classmethod
    def of(cls, found: Json) -> Self:
        turns, calls = found["turns"], found["calls"]
        return cls([TurnTimes(**turn) for turn in turns], [CallTimes(**call) for call in calls])

    def to_json(self) -> Json:
        return asdict(self)

    @property
    def wall_s(self) -> float:
        return self.turns[-1].end

    @property
    def first_s(self) -> float:
        """Seconds to the first pieces of text, with the waits at the engine."""
        return sum(turn.first - turn.begin for turn in self.turns)

    @property
    def decode_s(self) -> float:
        return sum(turn.end - turn.first for turn in self.turns)

    @property
    def tools_s(self) -> float:
        """Seconds in which only tools worked. A call beside the model's writing does not count."""
        return sum(overlap(wait, [call.own for call in self.calls]) for wait in self._waits())

    @property
    def start_s(self) -> float:
        """The other seconds: starts of servers, handshakes, the loop itself."""
        return self.wall_s - self.first_s - self.decode_s - self.tools_s

    @property
    def ttft_s(self) -> list[float]:
        """The TTFT after each wait for tools."""
        return [turn.first - turn.begin for turn in self.turns[1:]]

    def _waits(self) -> Iterator[Interval]:
        for turn, following in zip(self.turns, self.turns[1:], strict=False):
            yield turn.end, following.begin


def overlap(window: Interval, intervals: Iterable[Interval]) -> float:
    """How much of the window is covered."""
    covered, reached = 0.0, window[0]
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, window[1])
        if end > begin:
            covered += end - begin
            reached = end
    return covered
