"""Do prefill-aheads help on this endpoint? Compares resumed turns that had one with turns that had none.

First every other tool wait goes without, until both kinds are known; later one in eight, so that the comparison stays
true. No gain switches prefill-ahead off. It is tried again when waits without one find clearly less in the cache than
before, and else rarely, each time after twice as many waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

# Of each kind before a verdict.
ENOUGH = 4
KEPT = 16
CONTROL_EVERY = 8
# A smaller share of the prompt is less than a block or two, or noise.
MIN_SHARE = 0.05
# Where more is cached, the turn may be no slower than this; tool results differ in length, so equal is not exact.
MAX_RATIO = 1.1
# Where the server does not report cached tokens, time alone has to show the gain; two medians of four differ by luck.
CLEAR_RATIO = 0.8
# WaitStats without prefill-ahead before it is tried again, doubled up to the last.
REPROBE_WAITS, LONGEST_REPROBE_WAITS = 64, 1024
# A loss of this share while switched off means that the cache began to evict.
LOSS = 0.1


@dataclass(frozen=True, slots=True)
class GainReport:
    """Medians over resumed turns, warmed against not: share of the prompt that was cached, seconds per prompt token."""

    warmed: int
    unwarmed: int
    warmed_share: float | None
    unwarmed_share: float | None
    ttft_ratio: float | None
    is_off: bool


@dataclass(frozen=True, slots=True)
class _Resume:
    share: float | None
    pace: float


class Gain:
    """The comparison for one endpoint."""

    def __init__(self, *, always: bool = False) -> None:
        """always: warm every wait and never switch off."""
        self._always = always
        self._warmed: deque[_Resume] = deque(maxlen=KEPT)
        self._unwarmed: deque[_Resume] = deque(maxlen=KEPT)
        self._chosen = 0
        self._off = False
        self._off_waits = 0
        self._off_share: float | None = None
        self._reprobe = REPROBE_WAITS

    @property
    def is_off(self) -> bool:
        return self._off

    def choose(self) -> bool:
        """May the wait whose time has come be warmed? Every answer counts; False makes it one for comparison."""
        if self._always:
            return True
        if self._off:
            self._off_waits += 1
            return False
        self._chosen += 1
        if len(self._warmed) < ENOUGH or len(self._unwarmed) < ENOUGH:
            # Whichever is missing; the first wait is warmed.
            return len(self._unwarmed) >= ENOUGH or (len(self._warmed) < ENOUGH and self._chosen % 2 == 1)
        return self._chosen % CONTROL_EVERY != 0

    def resumed(self, *, warmed: bool, prompt_tokens: int, cached_tokens: int | None, ttft: float) -> None:
        """A turn after a wait that `choose` was asked about."""
        if prompt_tokens <= 0:
            return
        share = None if cached_tokens is None else cached_tokens / prompt_tokens
        (self._warmed if warmed else self._unwarmed).append(_Resume(share, ttft / prompt_tokens))
        if not self._always:
            self._judge()

    def report(self) -> GainReport:
        return GainReport(
            len(self._warmed),
            len(self._unwarmed),
            _share(self._warmed),
            _share(self._unwarmed),
            self._ratio(),
            self._off,
        )

    def _judge(self) -> None:
        if self._off:
            if self._off_waits >= self._reprobe or self._lost():
                self._probe_again()
        elif len(self._warmed) >= ENOUGH and len(self._unwarmed) >= ENOUGH and not self._helps():
            self._off, self._off_waits, self._off_share = True, 0, _share(self._unwarmed)

    def _helps(self) -> bool:
        ratio, with_it, without = self._ratio(), _share(self._warmed), _share(self._unwarmed)
        if ratio is None:
            return True
        if with_it is None or without is None:
            return ratio <= CLEAR_RATIO
        return with_it - without >= MIN_SHARE and ratio <= MAX_RATIO

    def _lost(self) -> bool:
        now = _share(list(self._unwarmed)[-ENOUGH:])
        return now is not None and self._off_share is not None and self._off_share - now >= LOSS

    def _probe_again(self) -> None:
        self._off, self._off_waits = False, 0
        self._reprobe = min(2 * self._reprobe, LONGEST_REPROBE_WAITS)
        self._warmed.clear()
        recent = list(self._unwarmed)[-ENOUGH:]
        self._unwarmed.clear()
        self._unwarmed.extend(recent)

    def _ratio(self) -> float | None:
        if not self._warmed or not self._unwarmed:
            return None
        slow = median(each.pace for each in self._unwarmed)
        return median(each.pace for each in self._warmed) / slow if slow > 0 else None


def _share(resumes: deque[_Resume] | list[_Resume]) -> float | None:
    shares = [each.share for each in resumes if each.share is not None]
    return fmean(shares) if shares else None
