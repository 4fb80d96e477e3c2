"""Estimates from measurements: how long tools take, how long a prefill takes, and the time to the first token."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
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
# seconds = a + b * new tokens + c * (all tokens)^2, fitted to the latest requests.
#
# a: queue and overhead. b: the work of the dense layers. c: attention over a long context. All are >= 0. The fit is
# robust: a request that waited behind others must not make every later prediction long.

# The latest requests. An engine's speed changes with its load.
KEPT_PREFILLS = 64
# With fewer points, three parameters are guesses.
ENOUGH_PREFILLS = 4
# Used before the first request: a mid-size model on one accelerator. It is far off, and the first turn corrects it.
DEFAULT_S_PER_TOKEN = 1e-4
# A fit takes some milliseconds of the event loop, so it is not repeated for every request.
_REFIT = 8
_ROUNDS = 5
# A point is an outlier if its error exceeds this many times the median error. Normal noise is smaller.
_OUTLIER = 4
# Tokens are counted in thousands, so that the squares do not dominate the fit.
_THOUSAND = 1000.0

CostRow = tuple[float, float, float]


class PrefillTimeEstimator:
    """Predicts the seconds of a prefill from those observed. `observe` is cheap; the fit happens in `seconds`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[CostRow, float]] = deque(maxlen=KEPT_PREFILLS)
        self._fit: CostRow | None = None
        self._unfitted = 0

    def __repr__(self) -> str:
        return f"<PrefillTimeEstimator of {len(self._seen)} requests: {self.coefficients}>"

    def observe(self, tokens: int, cached: int, seconds: float) -> None:
        """A prompt of `tokens`, of which `cached` were not computed, took `seconds` to its first token."""
        if tokens <= 0 or not seconds >= 0:
            return
        self._seen.append((_row(tokens, cached), seconds))
        self._unfitted += 1
        if self._unfitted >= _REFIT or len(self._seen) < 2 * _REFIT:
            self._fit = None

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """The predicted time to the first token."""
        return sum(c * x for c, x in zip(self.coefficients, _row(tokens, cached), strict=True))

    @property
    def coefficients(self) -> CostRow:
        """(a, b per 1000 new tokens, c per squared 1000 tokens)."""
        if self._fit is None:
            self._unfitted = 0
            rows, times = [row for row, _ in self._seen], [seconds for _, seconds in self._seen]
            self._fit = fit(rows, times) if len(rows) >= ENOUGH_PREFILLS else _rough(rows, times)
        return self._fit


def fit(rows: Sequence[CostRow], times: Sequence[float]) -> CostRow:
    """Non-negative coefficients: first nearly least absolute errors, then least squares without the outliers."""
    weights = [1.0] * len(rows)
    for _ in range(_ROUNDS):
        errors = _errors(_non_negative(rows, times, weights), rows, times)
        floor = max(1e-4, 0.1 * median(errors))
        weights = [1.0 / max(error, floor) for error in errors]
    limit = max(1e-4, _OUTLIER * median(errors))
    return _non_negative(rows, times, [float(error <= limit) for error in errors])


def _errors(found: CostRow, rows: Sequence[CostRow], times: Sequence[float]) -> list[float]:
    return [abs(seconds - _dot(found, row)) for row, seconds in zip(rows, times, strict=True)]


def _non_negative(rows: Sequence[CostRow], times: Sequence[float], weights: Sequence[float]) -> CostRow:
    """Least squares over all seven choices of which of the three coefficients are above zero."""
    best, least = (0.0, 0.0, 0.0), float("inf")
    for size in (1, 2, 3):
        for chosen in combinations(range(3), size):
            found = _least_squares(rows, times, weights, chosen)
            if found is None or min(found) < 0:
                continue
            error = sum(w * (t - _dot(found, r)) ** 2 for r, t, w in zip(rows, times, weights, strict=True))
            # Prefer the simpler of two that fit equally well: with equal prompts the coefficients are not determined.
            if error < least * (1 - 1e-9):
                best, least = found, error
    return best


def _least_squares(
    rows: Sequence[CostRow], times: Sequence[float], weights: Sequence[float], chosen: tuple[int, ...]
) -> CostRow | None:
    """Solve the normal equations by elimination; None if the data do not determine these coefficients."""
    size = len(chosen)
    weighted = list(zip(rows, weights, strict=True))
    table = [[sum(w * r[i] * r[j] for r, w in weighted) for j in chosen] for i in chosen]
    for line, i in zip(table, chosen, strict=True):
        line.append(sum(w * r[i] * t for r, t, w in zip(rows, times, weights, strict=True)))
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(table[row][at]))
        table[at], table[pivot] = table[pivot], table[at]
        if abs(table[at][at]) < 1e-12:
            return None
        table[at] = [value / table[at][at] for value in table[at]]
        for row in range(size):
            if row != at:
                table[row] = [v - table[row][at] * p for v, p in zip(table[row], table[at], strict=True)]
    found = [0.0, 0.0, 0.0]
    for row, i in enumerate(chosen):
        found[i] = table[row][size]
    return (found[0], found[1], found[2])


def _rough(rows: Sequence[CostRow], times: Sequence[float]) -> CostRow:
    """A fit from few points: the slowest rate seen, so that a prefill starts too early rather than too late.

    Points whose prompt was mostly cached do not count: other costs dominate their time.
    """
    rates = [seconds / row[1] for row, seconds in zip(rows, times, strict=True) if row[1] ** 2 > row[2] / 4]
    return (0.0, max(rates, default=DEFAULT_S_PER_TOKEN * _THOUSAND), 0.0)


def _row(tokens: int, cached: int) -> CostRow:
    n = tokens / _THOUSAND
    return (1.0, max(0.0, (tokens - cached) / _THOUSAND), n * n)


def _dot(left: CostRow, right: CostRow) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


# --- First token of an answer that was not streamed -------------------------------------------------------------------
# Estimates the time to the first token of an answer that was not streamed.
#
# Such an answer shows only its total time: the cost of the prompt's new tokens plus the cost of the answer's tokens.
# Both costs are fitted to the latest answers of an endpoint (least squares; older answers count less). Hints need the
# first part only, because they ask what a prefill costs.

# The weight of all earlier answers shrinks by this factor with each new answer.
_DECAY = 0.97
# Used before anything is known: engines read tens of tokens in the time in which they write one.
_WRITE_TO_READ = 50.0
# Weight of that ratio. It makes the fit solvable after one answer and hardly changes it after many.
_RIDGE = 0.01


class FirstTokenEstimator:
    """One endpoint's cost of reading and of writing a token, in seconds."""

    def __init__(self) -> None:
        self._rr = self._rw = self._ww = self._rs = self._ws = 0.0

    def __repr__(self) -> str:
        read, write = self._costs()
        return f"<FirstTokenEstimator {read:.2g} s per token read, {write:.2g} s written>"

    def observe(self, *, read: int, written: int, seconds: float) -> None:
        """read: prompt tokens that were not cached."""
        if read <= 0 or written <= 0 or not seconds > 0:
            return
        sums = (self._rr, self._rw, self._ww, self._rs, self._ws)
        added = (read * read, read * written, written * written, read * seconds, written * seconds)
        self._rr, self._rw, self._ww, self._rs, self._ws = (
            _DECAY * old + new for old, new in zip(sums, added, strict=True)
        )

    def first_token(self, *, read: int, written: int, seconds: float) -> float:
        """How many of an answer's seconds passed before its first token."""
        read_cost, write_cost = self._costs()
        both = read * read_cost + written * write_cost
        return seconds * read * read_cost / both if both > 0 else seconds

    def _costs(self) -> tuple[float, float]:
        """Least squares. A cost that is negative or not determined is replaced by the usual ratio."""
        if self._rr == 0:
            return 1.0, _WRITE_TO_READ
        usual = (self._rs + _WRITE_TO_READ * self._ws) / (
            self._rr + 2 * _WRITE_TO_READ * self._rw + _WRITE_TO_READ**2 * self._ww
        )
        # Ridge regression, towards the usual ratio.
        rr, ww = self._rr * (1 + _RIDGE), self._ww * (1 + _RIDGE)
        rs = self._rs + self._rr * _RIDGE * usual
        ws = self._ws + self._ww * _RIDGE * _WRITE_TO_READ * usual
        divisor = rr * ww - self._rw**2
        read, write = (rs * ww - ws * self._rw) / divisor, (ws * rr - rs * self._rw) / divisor
        return (read, write) if read > 0 and write > 0 else (usual, _WRITE_TO_READ * usual)
