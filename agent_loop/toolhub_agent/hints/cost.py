"""What a prefill takes: seconds = a + b * new tokens + c * (all tokens)^2, fitted to the times seen so far.

a: queue and overhead, b: the dense layers' work, c: attention over a long context. All are >= 0. The fit is robust: a
request that waited behind others must not make every later prediction long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import median

# The latest requests; an engine's speed changes with its load.
KEPT = 64
# With fewer points three parameters are guesses.
ENOUGH = 4
# Before anything was seen: a mid-size model on one accelerator; wrong by a lot, and corrected by the first turn.
COLD_S_PER_TOKEN = 1e-4
# A fit takes some milliseconds of the event loop, so it is not made anew for each request.
_REFIT = 8
_ROUNDS = 5
# Times the median error; normal noise stays within.
_OUTLIER = 4
# Tokens are counted in thousands inside, so that the squares do not swamp the rest.
_THOUSAND = 1000.0

Row = tuple[float, float, float]


class PrefillCost:
    """Predicts the seconds of a prefill from those observed; `observe` costs nothing, the fit is made when asked."""

    def __init__(self) -> None:
        self._seen: deque[tuple[Row, float]] = deque(maxlen=KEPT)
        self._fit: Row | None = None
        self._unfitted = 0

    def __repr__(self) -> str:
        return f"<PrefillCost of {len(self._seen)} requests: {self.coefficients}>"

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
    def coefficients(self) -> Row:
        """(a, b per 1000 new tokens, c per squared 1000 tokens)."""
        if self._fit is None:
            self._unfitted = 0
            rows, times = [row for row, _ in self._seen], [seconds for _, seconds in self._seen]
            self._fit = fit(rows, times) if len(rows) >= ENOUGH else _rough(rows, times)
        return self._fit


def fit(rows: Sequence[Row], times: Sequence[float]) -> Row:
    """Non-negative coefficients: nearly least absolute errors first, then least squares of what is no outlier."""
    weights = [1.0] * len(rows)
    for _ in range(_ROUNDS):
        errors = _errors(_non_negative(rows, times, weights), rows, times)
        floor = max(1e-4, 0.1 * median(errors))
        weights = [1.0 / max(error, floor) for error in errors]
    limit = max(1e-4, _OUTLIER * median(errors))
    return _non_negative(rows, times, [float(error <= limit) for error in errors])


def _errors(found: Row, rows: Sequence[Row], times: Sequence[float]) -> list[float]:
    return [abs(seconds - _dot(found, row)) for row, seconds in zip(rows, times, strict=True)]


def _non_negative(rows: Sequence[Row], times: Sequence[float], weights: Sequence[float]) -> Row:
    """The least squares over all choices of which coefficients are above zero: seven for three of them."""
    best, least = (0.0, 0.0, 0.0), float("inf")
    for size in (1, 2, 3):
        for chosen in combinations(range(3), size):
            found = _least_squares(rows, times, weights, chosen)
            if found is None or min(found) < 0:
                continue
            error = sum(w * (t - _dot(found, r)) ** 2 for r, t, w in zip(rows, times, weights, strict=True))
            # The simpler of two that fit equally well: equal prompts leave the coefficients open.
            if error < least * (1 - 1e-9):
                best, least = found, error
    return best


def _least_squares(
    rows: Sequence[Row], times: Sequence[float], weights: Sequence[float], chosen: tuple[int, ...]
) -> Row | None:
    """The normal equations by elimination; None where these coefficients cannot be told apart."""
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


def _rough(rows: Sequence[Row], times: Sequence[float]) -> Row:
    """From few points: the slowest rate seen, so that a prefill is begun too early rather than too late.

    A prompt that was mostly cached took what it took for other reasons.
    """
    rates = [seconds / row[1] for row, seconds in zip(rows, times, strict=True) if row[1] ** 2 > row[2] / 4]
    return (0.0, max(rates, default=COLD_S_PER_TOKEN * _THOUSAND), 0.0)


def _row(tokens: int, cached: int) -> Row:
    n = tokens / _THOUSAND
    return (1.0, max(0.0, (tokens - cached) / _THOUSAND), n * n)


def _dot(left: Row, right: Row) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
