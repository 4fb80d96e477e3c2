"""Rules that need only a clock value: pure, so that their tests need no event loop.

Every method takes `now` in seconds on whichever monotonic clock the caller uses.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delay, its upper half random, so that 60 slots that died together do not return together."""

    initial: float = 0.1
    maximum: float = 5.0
    factor: float = 2.0

    def delay(self, attempt: int, *, rng: random.Random | None = None) -> float:
        """Seconds to wait before `attempt` (1 = first retry)."""
        if attempt < 1:
            return 0.0
        # Capped exponent: 2.0**1100 overflows a float long before the maximum matters.
        ceiling = min(self.maximum, self.initial * self.factor ** min(attempt - 1, 64))
        return ceiling * (0.5 + 0.5 * (rng or random).random())


@dataclass(slots=True)
class RestartIntensity:
    """At most `max_deaths` deaths in `window` seconds (the rule Erlang/OTP supervisors use)."""

    max_deaths: int = 3
    window: float = 60.0
    _deaths: deque[float] = field(default_factory=deque)

    def record(self, now: float) -> bool:
        """Count one death; return True while another start is allowed."""
        self._deaths.append(now)
        self._forget(now)
        return len(self._deaths) <= self.max_deaths

    def recent(self, now: float) -> int:
        """Deaths inside the window."""
        self._forget(now)
        return len(self._deaths)

    def reset(self) -> None:
        self._deaths.clear()

    def _forget(self, now: float) -> None:
        while self._deaths and self._deaths[0] <= now - self.window:
            self._deaths.popleft()


@dataclass(slots=True)
class RetryBudget:
    """Replays may be at most `ratio` of calls (plus `reserve`), so that an outage is not multiplied by retries.

    The idea and the ratio are those of Finagle's and tower's retry budgets.
    """

    ratio: float = 0.2
    reserve: float = 10.0
    _balance: float = field(init=False)

    def __post_init__(self) -> None:
        self._balance = self.reserve

    def deposit(self) -> None:
        """One call was made."""
        self._balance = min(self.reserve + 100.0, self._balance + self.ratio)

    def withdraw(self) -> bool:
        """Take one replay; False when the budget is empty."""
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True
