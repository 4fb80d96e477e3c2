"""How long tools take, learned from every call: per tool, and while one is new, from its server or from all tools.

`Durations` is an observer of a hub's calls (`began`, `ended`), and can be told of single durations. Only the latest
durations count, so a tool that became slow is seen as slow soon.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolhub.model import Call

# Enough for a p90 that does not jump, few enough to follow a tool whose speed changes.
KEPT = 256
# Below this many, a tool's own quantiles say less than those of its server or of all tools.
ENOUGH = 5
# Names come from a model's text; beyond this many they are counted for all tools only.
MOST_NAMES = 2048
# Before anything was measured: a search or a page, the usual tools of a research agent.
COLD_S = 2.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a tool wait ends, in seconds from its start."""

    p50: float
    p90: float


class Durations:
    """Quantiles of tools' durations."""

    def __init__(self) -> None:
        self._of_tools: dict[tuple[str, str], deque[float]] = {}
        self._of_servers: dict[str, deque[float]] = {}
        self._of_all: deque[float] = deque(maxlen=KEPT)
        self._measured_by_hub: set[str] = set()

    def __repr__(self) -> str:
        return f"<Durations of {len(self._of_tools)} tools, {len(self._of_all)} latest calls>"

    def observe(self, server: str, tool: str, seconds: float) -> None:
        """Learn that a call took `seconds`."""
        if not seconds >= 0:
            return
        self._of_all.append(seconds)
        for known, key in ((self._of_tools, (server, tool)), (self._of_servers, server)):
            _append(known, key, seconds)  # type: ignore[arg-type]  # each key goes with its own dict

    def told(self, server: str, tool: str, seconds: float) -> None:
        """The same from an agent, which does not count where a hub measures that server: it would count twice."""
        if server not in self._measured_by_hub:
            self.observe(server, tool, seconds)

    def began(self, call: Call) -> None:
        """Part of being an observer of a hub's calls."""

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        """A call that failed or was cancelled says nothing about how long the tool takes."""
        if len(self._measured_by_hub) < MOST_NAMES:
            self._measured_by_hub.add(call.server)
        if outcome in ("ok", "tool_error"):
            self.observe(call.server, call.tool, seconds)

    def of_tool(self, server: str, tool: str) -> Sequence[float]:
        """The latest durations that speak best for a tool: its own, its server's, all; sorted, maybe empty."""
        return sorted(self._samples(server, tool))

    def own(self, server: str, tool: str) -> Sequence[float]:
        """The latest durations of this tool alone, sorted."""
        return sorted(self._of_tools.get((server, tool), ()))

    def of_all(self) -> Sequence[float]:
        """The latest durations of all tools, sorted."""
        return sorted(self._of_all)

    def forecast(self, tools: Iterable[tuple[str, str]]) -> Forecast:
        """When the slowest of tools that start together will be done."""
        samples = [self.of_tool(*tool) or [COLD_S] for tool in tools]
        return Forecast(slowest(samples, 0.5), slowest(samples, 0.9))

    def _samples(self, server: str, tool: str) -> Iterable[float]:
        for samples in (self._of_tools.get((server, tool)), self._of_servers.get(server)):
            if samples is not None and len(samples) >= ENOUGH:
                return samples
        return self._of_all


def slowest(samples: Sequence[Sequence[float]], quantile: float) -> float:
    """A quantile of the longest of several independent durations, each given by sorted samples; 0 of none."""
    for value in sorted({value for each in samples for value in each}):
        share = 1.0
        for each in samples:
            share *= bisect_right(each, value) / len(each)
        if share >= quantile:
            return value
    return 0.0


def _append(known: dict[object, deque[float]], key: object, seconds: float) -> None:
    if key not in known and len(known) >= MOST_NAMES:
        return
    known.setdefault(key, deque(maxlen=KEPT)).append(seconds)
