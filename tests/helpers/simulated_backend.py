"""Callers who always want to call, a limit, and a backend, on a clock that costs nothing."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toolhub.limits.adaptive import AdaptiveLimit

Backend = Callable[[int, float, float], float | None]
"""From calls in flight (this one included), the time and the call's own seconds: when it is answered, None: refused."""

PAUSE_S = 0.5


class Fixed:
    """A limit that somebody chose."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.paused_until = 0.0

    def observe(self, tool: str, seconds: float, in_flight: int, now: float) -> None:
        """Learn nothing."""

    def overloaded(self, now: float, retry_after: float | None, in_flight: int | None = None) -> None:
        self.paused_until = now + (retry_after or 0.0)


@dataclass
class Run:
    """times: when a call ended and what it took. limits: at the end of each second."""

    seconds: float
    times: list[tuple[float, float]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    refused: int = 0

    @property
    def goodput(self) -> float:
        return len(self.times) / self.seconds

    @property
    def p99(self) -> float:
        return sorted(seconds for _, seconds in self.times)[int(len(self.times) * 0.99)]


def workers(count: Callable[[float], int]) -> Backend:
    """So many calls run at a time, the others wait in line. count: by the time."""
    free: list[float] = [0.0] * 64

    def answer(in_flight: int, now: float, own: float) -> float:
        free.sort()
        free[:] = free[-count(now) :] if len(free) > count(now) else [now] * (count(now) - len(free)) + free
        ends = max(now, free[0]) + own
        free[0] = ends
        return ends

    return answer


def thrashing(in_flight: int, now: float, own: float) -> float:
    """Calls get into each other's way: sixteen take twice as long as one, 120 as long as 57."""
    return now + own * (1 + (in_flight / 16) ** 2)


def refusing_above(most: Callable[[float], int]) -> Backend:
    return lambda in_flight, now, own: now + own if in_flight <= most(now) else None


def simulate(
    limit: AdaptiveLimit | Fixed,
    backend: Backend,
    *,
    seconds: float,
    callers: int = 120,
    base: float | Callable[[float], float] = 0.1,
    sigma: float = 0.1,
    tools: Callable[[float], Sequence[tuple[str, float]]] = lambda now: [("tool", 1.0)],
    seed: int = 1,
) -> Run:
    """Run for so long. base, sigma: of a call's own seconds, which are log-normal. tools: names and factors by time."""
    chance, run = random.Random(seed), Run(seconds)
    now, in_flight, number = 0.0, 0, 0
    events: list[tuple[float, int, float, str, bool]] = []
    while now < seconds:
        while in_flight < min(limit.limit, callers) and now >= limit.paused_until:
            in_flight, number = in_flight + 1, number + 1
            tool, factor = chance.choice(tools(now))
            own = (base(now) if callable(base) else base) * factor * math.exp(chance.gauss(0, sigma))
            ends = backend(in_flight, now, own)
            heapq.heappush(events, (ends or now + 0.002, number, now, tool, ends is None))
        if not events or (now < limit.paused_until < events[0][0]):
            now = limit.paused_until
            continue
        now, _, began, tool, is_refused = heapq.heappop(events)
        if is_refused:
            run.refused += 1
            limit.overloaded(now, PAUSE_S, in_flight)
        else:
            run.times.append((now, now - began))
            limit.observe(tool, now - began, in_flight, now)
        in_flight -= 1
        run.limits += [limit.limit] * (int(now) - len(run.limits))
    return run
