"""Finds how many calls at once a backend can serve, from the latency of its answers. No I/O, no clock.

Too many calls make each one slower: they queue in the backend or disturb each other. The limit follows the rule of
TCP's congestion control (additive increase, multiplicative decrease):

- The calls of a window are compared with the baseline of their tool: what its calls take while few run. One baseline
  per tool, because the tools of one server may differ twentyfold.
- If the window was on average more than `TOLERANCE` times as slow as the baseline, a part of the limit is cut off.
  If it was not, and the limit was reached, the limit grows a little.
- If several cuts in a row do not make the calls faster, their number is not the cause: the backend has become slower,
  and the baseline is raised. It is lowered when the backend has become faster.
- Averages with outliers cut off, not medians: where a cache answers half of the calls, a median jumps between two
  values that are a thousandfold apart.
- A backend that reports overload itself (429, 503) is believed at once. The limit that was too high is tried again only
  after a while.

Times are seconds. Every `now` is on the caller's monotonic clock.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

# Calls this much slower than the baseline are no reason to shrink: latency scatters, and a short queue is useful.
TOLERANCE = 1.75
# Until the first overload the limit doubles (as in TCP's slow start) while windows are not slower than this.
SLOW_START_RATIO = 1.25
# The part of the limit that a cut leaves, and the part by which it grows (but at least one call).
LEFT_BY_CUT, GROWTH = 0.7, 0.1
# Calls in a window: about two for each place; one while the limit doubles.
FEWEST_CALLS, MOST_CALLS = 10, 64
# One call counts as at most this many times the baseline.
CUT_OFF = 8.0
# How many calls make a tool's first baseline, and over how many it is averaged later.
FIRST_CALLS, REMEMBERED_CALLS = 16, 40
# After so many slow (or fast) windows in a row the baseline may be wrong. Three cuts leave a third of the limit; if the
# ratio is then still above the given part of the first one, the number of calls is not the cause.
STREAK, SAME_RATIO = 4, 0.8
# A limit that a backend refused is not tried again for this long.
HOLD_S = 30.0
# Refusals within this time after a cut (or after the pause that the backend asked for) have the same reason.
SAME_REFUSAL_S = 1.0
# A backend cannot pause a hub for longer.
LONGEST_PAUSE_S = 60.0
# Tool names come from servers; tools beyond this number are not measured.
MOST_TOOLS = 512


@dataclass(slots=True)
class _Baseline:
    """What the calls of one tool take while few run."""

    seconds: float = 0.0
    _calls: int = -1  # the first call is not counted: it often includes a cold start

    @property
    def is_known(self) -> bool:
        return self._calls >= FIRST_CALLS

    def add(self, seconds: float) -> None:
        self._calls += 1
        if self._calls:
            seconds = min(seconds, CUT_OFF * self.seconds) if self._calls > 1 else seconds
            self.seconds += (seconds - self.seconds) / min(self._calls, REMEMBERED_CALLS)
            self.seconds = max(1e-6, self.seconds)


class AdaptiveLimit:
    """How many calls one backend gets at once, between `minimum` and `maximum`."""

    def __init__(self, *, maximum: int, minimum: int = 1, initial: int = 4) -> None:
        if not 1 <= minimum <= maximum:
            raise ValueError(f"a limit cannot lie between {minimum} and {maximum}")
        self.paused_until = 0.0
        """On the caller's clock; 0.0 if the backend asked for no pause."""
        self.ratio = 1.0
        """Latency of the last window to the baseline."""
        self.decreases = self.overloads = 0
        self._least, self._most = minimum, maximum
        self._limit = float(min(max(initial, minimum), maximum))
        self._baselines: dict[str, _Baseline] = {}
        self._window: list[tuple[_Baseline, float]] = []  # the last calls, with their seconds
        self._peak = 0  # most calls in flight in this window
        self._streak: list[float] = []  # the ratios of the last windows, while all of them are too slow, or too fast
        self._passing = 0  # calls that began under another limit; their latency says nothing about this one
        self._ceiling = math.inf
        self._held_until = self._believed_from = -math.inf

    def __repr__(self) -> str:
        return f"<AdaptiveLimit {self.limit} of {self._least}..{self._most} ratio={self.ratio:.2f}>"

    @property
    def limit(self) -> int:
        """How many calls may run now."""
        return int(self._limit)

    def observe(self, tool: str, seconds: float, in_flight: int, now: float) -> None:
        """A call succeeded after `seconds`. in_flight: calls that ran when it ended, itself included."""
        if now >= self.paused_until:
            self.paused_until = 0.0
        baseline = self._baselines.get(tool)
        if baseline is None:
            if len(self._baselines) >= MOST_TOOLS:
                return
            baseline = self._baselines[tool] = _Baseline()
        if not 0 <= seconds < math.inf:
            return
        if baseline.is_known:
            self._count(baseline, seconds, in_flight, now)
        else:
            baseline.add(seconds)

    def failed(self, tool: str, seconds: float, in_flight: int, now: float) -> None:
        """A call had no answer after `seconds`. It counts only if that is long for its tool."""
        baseline = self._baselines.get(tool)
        if baseline is not None and baseline.is_known and seconds > TOLERANCE * baseline.seconds:
            self._count(baseline, seconds, in_flight, now)

    def overloaded(self, now: float, retry_after: float | None, in_flight: int | None = None) -> None:
        """The backend refused a call because it is overloaded. retry_after: seconds it asked for, if it did.

        in_flight: calls that ran then, the refused one included; None: as many as the limit allowed.
        """
        self.overloads += 1
        if retry_after is not None and retry_after > 0:  # not for NaN either
            self.paused_until = max(self.paused_until, now + min(retry_after, LONGEST_PAUSE_S))
        if now < self._believed_from:
            return
        self._believed_from = max(now, self.paused_until) + SAME_REFUSAL_S
        refused_at = self._limit if in_flight is None else min(self._limit, max(1, in_flight))
        self._ceiling, self._held_until = max(self._least, int(refused_at) - 1), now + HOLD_S
        self._cut(refused_at)

    @property
    def _is_slow_start(self) -> bool:
        return not (self.decreases or self.overloads)

    def _count(self, baseline: _Baseline, seconds: float, in_flight: int, now: float) -> None:
        """Add a call to the window, if it began under this limit."""
        if self._passing:
            self._passing -= 1
            return
        self._window.append((baseline, seconds))
        self._peak = max(self._peak, in_flight)
        places = 1 if self._is_slow_start else 2
        if len(self._window) >= min(max(places * self.limit, FEWEST_CALLS), MOST_CALLS):
            self._close_window(in_flight, now)
            self._window.clear()
            self._peak = 0

    def _close_window(self, in_flight: int, now: float) -> None:
        ratios = [min(seconds / baseline.seconds, CUT_OFF) for baseline, seconds in self._window]
        self.ratio = statistics.fmean(ratios)
        standard_error = statistics.pstdev(ratios, self.ratio) / math.sqrt(len(ratios))
        is_slow = self.ratio - standard_error > TOLERANCE
        is_fast = self.ratio + standard_error < 1 / TOLERANCE
        self._note_streak(is_slow, is_fast)
        if is_slow:
            self._cut(min(self._limit, self._peak))  # only the calls that ran can have slowed each other down
            self._passing = in_flight
        elif self._peak >= self.limit:
            doubles = self._is_slow_start and self.ratio < SLOW_START_RATIO
            if doubles:
                self._passing = in_flight
            by = self._limit if doubles else 1.0 if self.overloads else max(1.0, GROWTH * self._limit)
            highest = min(self._ceiling, self._most) if now < self._held_until else self._most
            self._limit = max(self._limit, min(self._limit + by, highest))
        elif self._peak <= self.limit / 3:
            for baseline, seconds in self._window:
                baseline.add(seconds)

    def _note_streak(self, is_slow: bool, is_fast: bool) -> None:
        """Correct the baselines if the last windows were all too fast, or all too slow whatever the limit was."""
        if (self._streak and (self._streak[-1] > 1) != is_slow) or not (is_slow or is_fast):
            self._streak.clear()
        if is_slow or is_fast:
            self._streak.append(self.ratio)
        if len(self._streak) < STREAK:
            return
        first, *_, last = self._streak
        if is_fast or SAME_RATIO * first < last < SAME_RATIO * CUT_OFF:
            factor = statistics.fmean(self._streak)
            for baseline in self._baselines.values():
                baseline.seconds = max(1e-6, baseline.seconds * factor)
        self._streak.clear()

    def _cut(self, used: float) -> None:
        before = self.limit
        self._limit = max(float(self._least), min(self._limit, LEFT_BY_CUT * used))
        self.decreases += self.limit < before
