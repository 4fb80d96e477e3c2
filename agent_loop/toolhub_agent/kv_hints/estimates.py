"""Estimates from measurements: how long tools take, how long a prefill takes, and the time to the first token."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from toolhub.model import Call

# --- Tools ------------------------------------------------------------------------------------------------------------
# How long tools take, learned from every call: per tool, and for a new tool from its server or from all tools.
#
# `ToolDurations` observes a hub's calls (`began`, `ended`). An agent can also report single durations. Only the latest
# durations count, so a tool that becomes slow is soon known to be slow.

# Enough for a p90 that does not jump. Few enough to follow a tool whose speed changes.
KEPT_DURATIONS = 256
# With fewer durations a tool's own quantiles say less than those of its server or of all tools.
ENOUGH_DURATIONS = 5
# Names come from a model's text, so they are bounded. Durations of further names count for all tools only.
MAX_NAMES = 2048
# Used before anything was measured: a search or a page, the usual tools of a research agent.
DEFAULT_DURATION_S = 2.0


@dataclass(frozen=True, slots=True)
class WaitForecast:
    """When a tool wait ends, in seconds from its start."""

    p50: float
    p90: float


class ToolDurations:
    """Quantiles of tool durations."""

    def __init__(self) -> None:
        self._of_tools: dict[tuple[str, str], deque[float]] = {}
        self._of_servers: dict[str, deque[float]] = {}
        self._of_all: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self._measured_by_hub: set[str] = set()

    def __repr__(self) -> str:
        return f"<ToolDurations of {len(self._of_tools)} tools, {len(self._of_all)} latest calls>"

    def observe(self, server: str, tool: str, seconds: float) -> None:
        """Learn that a call took `seconds`."""
        if not seconds >= 0:
            return
        self._of_all.append(seconds)
        for known, key in ((self._of_tools, (server, tool)), (self._of_servers, server)):
            _append(known, key, seconds)  # type: ignore[arg-type]  # each key goes with its own dict

    def observe_reported(self, server: str, tool: str, seconds: float) -> None:
        """Learn a duration that an agent reports. It is ignored if a hub measures that server: it would count twice."""
        if server not in self._measured_by_hub:
            self.observe(server, tool, seconds)

    def began(self, call: Call) -> None:
        """Do nothing. Every observer of a hub's calls has this method."""

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        """Learn from a call that the tool answered. Other calls do not show how long the tool takes."""
        if len(self._measured_by_hub) < MAX_NAMES:
            self._measured_by_hub.add(call.server)
        if outcome in ("ok", "tool_error"):
            self.observe(call.server, call.tool, seconds)

    def of_tool(self, server: str, tool: str) -> Sequence[float]:
        """The latest durations that predict a tool best: its own, else its server's, else all. Sorted, maybe empty."""
        return sorted(self._samples(server, tool))

    def own(self, server: str, tool: str) -> Sequence[float]:
        """The latest durations of this tool alone, sorted."""
        return sorted(self._of_tools.get((server, tool), ()))

    def of_all(self) -> Sequence[float]:
        """The latest durations of all tools, sorted."""
        return sorted(self._of_all)

    def forecast(self, tools: Iterable[tuple[str, str]]) -> WaitForecast:
        """When the slowest of several tools that start together ends."""
        samples = [self.of_tool(*tool) or [DEFAULT_DURATION_S] for tool in tools]
        return WaitForecast(quantile_of_slowest(samples, 0.5), quantile_of_slowest(samples, 0.9))

    def _samples(self, server: str, tool: str) -> Iterable[float]:
        for samples in (self._of_tools.get((server, tool)), self._of_servers.get(server)):
            if samples is not None and len(samples) >= ENOUGH_DURATIONS:
                return samples
        return self._of_all


def quantile_of_slowest(samples: Sequence[Sequence[float]], quantile: float) -> float:
    """A quantile of the longest of several independent durations; 0 without samples. samples: sorted, one per tool."""
    for value in sorted({value for each in samples for value in each}):
        share = 1.0
        for each in samples:
            share *= bisect_right(each, value) / len(each)
        if share >= quantile:
            return value
    return 0.0


def _append(known: dict[object, deque[float]], key: object, seconds: float) -> None:
    if key not in known and len(known) >= MAX_NAMES:
        return
    known.setdefault(key, deque(maxlen=KEPT_DURATIONS)).append(seconds)


# --- Prefill ----------------------------------------------------------------------------------------------------------
# Median seconds per token that was not cached, of the latest requests. A median is robust: a request that waited behind
# others does not make later predictions long.

# An engine's speed changes with its load.
KEPT_PREFILLS = 64
# The time of a shorter prefill is mostly overhead.
MIN_PREFILL_TOKENS = 256
# Used before the first request: a mid-size model on one accelerator. It is far off, and the first turn corrects it.
DEFAULT_S_PER_TOKEN = 1e-4
# Seconds to write a token, by seconds to read one: engines read tens of tokens in the time in which they write one.
WRITE_TO_READ = 50.0


class PrefillTimeEstimator:
    """Predicts the seconds of a prefill from those observed."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=KEPT_PREFILLS)

    def __repr__(self) -> str:
        return f"<PrefillTimeEstimator of {len(self._rates)} requests: {self.seconds(1000):.3f} s per 1000 tokens>"

    def observe(self, tokens: int, cached: int, seconds: float) -> None:
        """A prompt of `tokens`, of which `cached` were not computed, took `seconds` to its first token."""
        if tokens - cached >= MIN_PREFILL_TOKENS and seconds >= 0:
            self._rates.append(seconds / (tokens - cached))

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """The predicted time to the first token."""
        rate = median(self._rates) if self._rates else DEFAULT_S_PER_TOKEN
        return rate * max(0, tokens - cached)


def estimate_ttft(*, read: int, written: int, seconds: float) -> float:
    """The estimated time to the first token of an answer that was not streamed and took `seconds`.

    read: prompt tokens that were not cached.
    """
    work = read + WRITE_TO_READ * written
    if read > 0:
        return seconds * (read / work)  # in this order rounding makes it no more than `seconds`
    return 0.0 if written > 0 else seconds
