"""How long an engine should keep a conversation's KV cache while its tools run: Continuum's formula (arXiv 2511.02230).

tau* = argmax over tau of P(duration <= tau) * (T * eta + reload) - tau: what is gained if the tools are back in time,
minus the time for which the memory is held. T: mean wait in the queue of requests whose cache was lost. eta: 1 where
every program has as many requests as any other, 0 where what is left of one does not depend on what it has done.
reload: seconds to compute or load the prefix again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# Continuum's K: with no more records than this, a distribution is not trusted.
FEW = 100
# Where no tool has been seen yet: most calls of a research agent end within it.
UNKNOWN_S = 30.0
# Over the nine of ten tools that it is meant for.
_SPARE = 1.5
# The latest programs' lengths are enough for a correlation.
_LONGEST_PROGRAM = 1000


def retention(own: Sequence[float], overall: Sequence[float], benefit: float, *, longest: float) -> float:
    """Seconds to keep a prefix, within 0 and `longest`; 0 is: do not.

    own, overall: past durations of the tool, and of all tools. benefit: T * eta + reload, seconds.
    """
    if len(overall) <= FEW:
        ttl = cold(benefit)
    else:
        ttl = optimum(own if len(own) > FEW else overall, benefit)
    return min(ttl, longest)


def unhurried(overall: Sequence[float], *, margin: float, longest: float) -> float:
    """Seconds to keep a prefix where keeping it costs nobody anything: long enough for nearly every tool.

    For pins that give way before another request has to wait, as those of toolhub's scheduler do; the formula above
    weighs the memory they hold, and there that is free.
    """
    if not overall:
        return min(UNKNOWN_S, longest)
    ordered = sorted(overall)
    usual = ordered[min(len(ordered) * 9 // 10, len(ordered) - 1)]
    return min(usual * _SPARE + margin, longest)


def cold(benefit: float) -> float:
    """The optimum for durations that are exponential with mean 1 s: ln(benefit), 0 where that is negative."""
    return math.log(benefit) if benefit > 1 else 0.0


def optimum(durations: Sequence[float], benefit: float) -> float:
    """The best of 0 and every recorded duration; the shorter of two equally good."""
    best, best_value = 0.0, 0.0
    for count, duration in enumerate(ordered := sorted(durations), start=1):
        value = count / len(ordered) * benefit - duration
        if value > best_value:
            best, best_value = duration, value
    return best


def memory(lengths: Iterable[int]) -> float:
    """eta = -Corr(requests served, requests left) over programs of these lengths, at least 0."""
    points = [(k, n - k) for n in lengths for k in range(1, min(n, _LONGEST_PROGRAM) + 1)]
    if len(points) < 2:
        return 0.0
    mean_served = sum(k for k, _ in points) / len(points)
    mean_left = sum(left for _, left in points) / len(points)
    together = sum((k - mean_served) * (left - mean_left) for k, left in points)
    spread = sum((k - mean_served) ** 2 for k, _ in points) * sum((left - mean_left) ** 2 for _, left in points)
    return max(0.0, -together / math.sqrt(spread)) if spread > 0 else 0.0
