"""Finds how many calls at once a backend can serve, from the latency of its answers. No I/O, no clock.

Too many calls make each one slower: they queue in the backend or disturb each other. The limit follows the ratio of
today's latency to the baseline (the gradient algorithm of Envoy's adaptive concurrency filter and Netflix's Gradient2):

- The baseline is kept per tool, because the tools of one server may differ twentyfold. It is the mean latency while few
  calls ran. Under constant load the limit is lowered to a third now and then, for a few dozen calls, to measure it.
- The calls of a window were on average `ratio` times as slow as the baseline. Above `TOLERANCE` the limit shrinks.
  Below it, and if the limit was reached, the limit grows by about its square root.
- Averages with outliers cut off, not medians: where a cache answers half of the calls, a median jumps between two
  values that are a thousandfold apart.
- A backend that reports overload itself (429, 503) is believed at once. The limit that was too high is tried again only
  after a while, in small steps that double while they do no harm.

Times are seconds. Every `now` is on the caller's monotonic clock.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

# Calls this much slower than the baseline are no reason to shrink: latency scatters, and a short queue is useful.
TOLERANCE = 1.5
# Until the first overload the limit doubles (as in TCP's slow start) while the ratio stays below this.
SLOW_START_RATIO = 1.25
# The part of the limit that is left after the worst window, and after a reported overload.
LEAST_LEFT, LEFT_BY_OVERLOAD = 0.5, 0.7
# Calls in a window: about two for each place; one while the limit doubles.
FEWEST_CALLS, MOST_CALLS = 10, 64
# One call counts as at most this many times the baseline.
CUT_OFF = 8.0
# How many calls make a tool's first baseline, and over how many it is averaged later.
FIRST_CALLS, REMEMBERED_CALLS = 16, 40
# The pause between two baseline measurements, in seconds and in calls one after another (at random up to twice as
# long), and the share of all time that they may take.
QUIET_EVERY_S, QUIET_EVERY_CALLS, QUIET_SHARE = 30.0, 30, 0.05
# A limit that a backend refused is not tried again for this long. Doubles with each refusal, up to the second value.
HOLD_S, LONGEST_HOLD_S = 10.0, 60.0
# A backend cannot pause a hub for longer.
LONGEST_PAUSE_S = 60.0
# Tool names come from servers; tools beyond this number are not measured.
MOST_TOOLS = 512


@dataclass(frozen=True, slots=True)
class LimitStatistics:
    """A limit at one moment. ratio: latency of the last window to the baseline. quiet_times: how often the limit was
    lowered to measure the baseline. paused_until: on the caller's clock; 0.0 if the backend asked for no pause.
    """

    limit: int
    ratio: float
    decreases: int
    overloads: int
    quiet_times: int
    paused_until: float


@dataclass(slots=True)
class _Usual:
    """The baseline of one tool: what its calls take while few run."""

    seconds: float = 0.0
    _first: list[float] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        return len(self._first) == FIRST_CALLS

    def begin(self, seconds: float) -> None:
        """Add one of the first calls. The slowest counts for less: it often includes a cold start."""
        self._first.append(seconds)
        if self.is_known:
            slowest = max(self._first)
            others = sum(self._first) - slowest
            self.seconds = max(1e-6, (others + min(slowest, 4 * others / (FIRST_CALLS - 1))) / FIRST_CALLS)

    def follow(self, seconds: float) -> None:
        """Add a call that ran while few others did."""
        self.seconds += (min(seconds, CUT_OFF * self.seconds) - self.seconds) / REMEMBERED_CALLS
        self.seconds = max(1e-6, self.seconds)


@dataclass(slots=True)
class _Window:
    """ratios, squares: sums of them. peak: most calls in flight."""

    calls: int = 0
    ratios: float = 0.0
    squares: float = 0.0
    peak: int = 0

    def add(self, ratio: float, in_flight: int) -> None:
        self.calls += 1
        self.ratios += ratio
        self.squares += ratio * ratio
        self.peak = max(self.peak, in_flight)

    @property
    def mean(self) -> float:
        return self.ratios / self.calls

    @property
    def doubt(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(max(0.0, self.squares / self.calls - self.mean**2) / self.calls)


class AdaptiveLimit:
    """How many calls one backend gets at once, between `minimum` and `maximum`."""

    def __init__(self, *, maximum: int, minimum: int = 1, initial: int = 4, rng: random.Random | None = None) -> None:
        if not 1 <= minimum <= maximum:
            raise ValueError(f"a limit cannot lie between {minimum} and {maximum}")
        self.paused_until = 0.0
        self._least, self._most = minimum, maximum
        self._limit = float(min(max(initial, minimum), maximum))
        self._random = rng or random.Random()  # noqa: S311  # spreads measurements, guards nothing
        self._usual: dict[str, _Usual] = {}
        self._seconds = 0.0  # of a call, averaged over all tools
        self._ratio = 1.0
        self._window = _Window()
        self._passing = 0  # calls that began under another limit; their latency says nothing about this one
        self._is_draining = False
        self._quiet_run = 0
        self._quiet_left = 0
        self._quiet_since = 0.0
        self._next_quiet: float | None = None
        self._may_be_quiet = -math.inf
        self._highest = self._limit  # since it was quiet last
        self._ceiling = math.inf
        self._step = 1
        self._hold = HOLD_S
        self._held_until = self._believed_from = -math.inf
        self._decreases = self._overloads = self._quiet_times = 0

    def __repr__(self) -> str:
        return f"<AdaptiveLimit {self.limit} of {self._least}..{self._most} ratio={self._ratio:.2f}>"

    @property
    def limit(self) -> int:
        """How many calls may run now."""
        return self._quiet_level if self._quiet_left else int(self._limit)

    def observe(self, tool: str, seconds: float, in_flight: int, now: float) -> None:
        """A call succeeded after `seconds`. in_flight: calls that ran when it ended, itself included."""
        if now >= self.paused_until:
            self.paused_until = 0.0
        usual = self._usual_of(tool)
        if usual is None or not 0 <= seconds < math.inf:
            return
        self._seconds += (seconds - self._seconds) / 16 if self._seconds else seconds
        if self._next_quiet is None:
            self._next_quiet = self._when_quiet(now, 0.0)
        if not usual.is_known:
            usual.begin(seconds / max(1.0, self._ratio))
            return
        self._measure(usual, seconds, in_flight, now)
        self._count(seconds / usual.seconds, in_flight, now)

    def failed(self, tool: str, seconds: float, in_flight: int, now: float) -> None:
        """A call had no answer after `seconds`. It counts only if that is long for its tool."""
        usual = self._usual.get(tool)
        if usual is not None and usual.is_known and seconds > TOLERANCE * usual.seconds:
            if self._quiet_left:  # the measurement goes on without a sample
                self._pass_quiet(in_flight, now)
            self._count(seconds / usual.seconds, in_flight, now)

    def overloaded(self, now: float, retry_after: float | None, in_flight: int | None = None) -> None:
        """The backend refused a call because it is overloaded. retry_after: seconds it asked for, if it did.

        in_flight: calls that ran then, the refused one included; None: as many as the limit allowed.
        """
        self._overloads += 1
        if retry_after is not None and retry_after > 0:  # not for NaN either
            self.paused_until = max(self.paused_until, now + min(retry_after, LONGEST_PAUSE_S))
        if now < self._believed_from:  # calls sent before the last cut are refused for the same reason
            return
        self._hold = min(LONGEST_HOLD_S, 2 * self._hold) if now < self._held_until + self._hold else HOLD_S
        self._held_until = now + self._hold
        stood = self._limit if in_flight is None else min(self._limit, max(1, in_flight))
        self._ceiling, self._step = max(self._least, int(stood) - 1), 1
        self._shrink(stood * LEFT_BY_OVERLOAD)
        self._believed_from = max(now, self.paused_until) + (self._seconds or 1.0)

    def statistics(self) -> LimitStatistics:
        return LimitStatistics(
            self.limit, self._ratio, self._decreases, self._overloads, self._quiet_times, self.paused_until
        )

    @property
    def _has_never_been_too_much(self) -> bool:
        return not (self._decreases or self._overloads)

    @property
    def _quiet_level(self) -> int:
        """The lowered limit while the baseline is measured."""
        return max(self._least, math.ceil(int(self._limit) / 3))

    def _usual_of(self, tool: str) -> _Usual | None:
        if tool not in self._usual:
            if len(self._usual) >= MOST_TOOLS:
                return None
            self._usual[tool] = _Usual()
        return self._usual[tool]

    def _measure(self, usual: _Usual, seconds: float, in_flight: int, now: float) -> None:
        """Update the baseline with a call that ran beside few others from beginning to end."""
        level = self._quiet_level
        self._quiet_run = self._quiet_run + 1 if in_flight <= level else 0
        if self._quiet_run <= level:  # it may have begun beside many others
            return
        usual.follow(seconds)
        if self._quiet_left:
            self._pass_quiet(in_flight, now)
        else:
            self._next_quiet = self._when_quiet(now, 0.0)

    def _pass_quiet(self, in_flight: int, now: float) -> None:
        """Count down the calls of a baseline measurement."""
        self._quiet_left -= 1
        if not self._quiet_left:
            self._next_quiet = self._when_quiet(now, now - self._quiet_since)
            self._highest = self._limit
            self._window, self._passing, self._is_draining = _Window(), in_flight, False

    def _when_quiet(self, now: float, taken: float) -> float:
        self._may_be_quiet = now + taken / QUIET_SHARE
        pause = max(QUIET_EVERY_S, QUIET_EVERY_CALLS * self._seconds)
        return max(self._may_be_quiet, now + pause * (1 + self._random.random()))

    def _count(self, ratio: float, in_flight: int, now: float) -> None:
        """Add a call to the window, if it began under this limit."""
        if self._quiet_left:
            return
        if self._is_draining:
            self._is_draining = in_flight > self.limit
            self._passing = in_flight
            return
        if self._passing:
            self._passing -= 1
            return
        self._window.add(min(ratio, CUT_OFF), in_flight)
        places = 1 if self._has_never_been_too_much else 2
        if self._window.calls >= min(max(places * self.limit, FEWEST_CALLS), MOST_CALLS):
            self._close_window(now)

    def _close_window(self, now: float) -> None:
        window, self._window = self._window, _Window()
        self._ratio = window.mean
        gradient = max(LEAST_LEFT, min(1.0, TOLERANCE / max(window.mean - window.doubt, 1e-9)))
        is_used = window.peak >= self.limit
        # Only the calls that ran can have slowed each other down.
        base = self._limit if is_used else min(self._limit, window.peak)
        fitting = base * gradient + math.sqrt(base) * (2 * gradient - 1)
        if fitting < self._limit and gradient < 1:
            self._shrink(fitting)
        elif is_used:
            doubles = self._has_never_been_too_much and window.mean < SLOW_START_RATIO
            self._grow(2 * base if doubles else fitting, now)
        self._highest = max(self._highest, self._limit)
        # If fewer calls are as slow, their number is not the cause: measure the baseline again.
        due = self._may_be_quiet if self._limit < self._highest / 2 else self._next_quiet
        if due is not None and now >= due and window.peak > self._quiet_level:
            self._quiet_left = min(REMEMBERED_CALLS, 8 * self._quiet_level)  # many would take long one by one
            self._quiet_since, self._quiet_run = now, 0
            self._quiet_times += 1

    def _grow(self, fitting: float, now: float) -> None:
        if fitting > self._ceiling and now >= self._held_until:
            self._ceiling, self._step = self._ceiling + self._step, 2 * self._step
        self._limit = max(self._limit, min(fitting, self._ceiling, self._most))

    def _shrink(self, fitting: float) -> None:
        before = self.limit
        self._limit = max(float(self._least), min(self._limit, fitting))
        self._decreases += self.limit < before
        self._is_draining = True
