"""How fast sandboxes may be created: evenly spaced, slower after a refusal, and soon as fast as before.

The service refuses with 429 (too fast, or too many) and 503 (no room). Each refusal halves the rate, each creation
that works adds a tenth of the configured one: the rule TCP uses, so that several hubs on one account share it fairly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio

# Slower than one try in a minute would look dead, and a refusal costs the service next to nothing.
SLOWEST_PER_SECOND = 1 / 60


@dataclass(slots=True)
class CreateRate:
    """The rule alone; `now` is seconds on any monotonic clock."""

    per_second: float
    """Never faster than this."""
    current: float = field(init=False)
    _next: float = -math.inf
    _refused_at: float = -math.inf

    def __post_init__(self) -> None:
        self.current = self.per_second

    def wait_s(self, now: float) -> float:
        """Seconds until the next creation may start; 0: now."""
        return max(0.0, self._next - now)

    def take(self, now: float) -> None:
        """A creation starts."""
        self._next = now + 1 / self.current

    def accept(self) -> None:
        """A creation worked."""
        self.current = min(self.per_second, self.current + self.per_second / 10)

    def refuse(self, now: float, *, started: float, retry_after: float | None = None) -> None:
        """A creation that began at `started` was refused.

        Those that were already on their way when the rate was lowered say nothing new: they do not lower it again.
        """
        if started >= self._refused_at:
            self.current = max(min(self.per_second, SLOWEST_PER_SECOND), self.current / 2)
            self._refused_at = now
        self._next = max(self._next, now + max(1 / self.current, retry_after or 0.0))


class CreatePace:
    """Makes creations wait for the rule, first come first served."""

    def __init__(self, rate: CreateRate) -> None:
        self.rate = rate
        self._turn = anyio.Lock()

    def __repr__(self) -> str:
        return f"<CreatePace {self.rate.current:g}/s of {self.rate.per_second:g}/s>"

    @property
    def retry_after(self) -> float:
        """Seconds after which another try makes sense."""
        return self.rate.wait_s(anyio.current_time())

    async def wait_turn(self) -> float:
        """Return, when a creation may start, the time at which it does."""
        async with self._turn:
            # In a loop: a refusal that arrives during the wait makes it longer.
            while (wait := self.rate.wait_s(anyio.current_time())) > 0:
                await anyio.sleep(wait)
            now = anyio.current_time()
            self.rate.take(now)
            return now

    def accepted(self) -> None:
        self.rate.accept()

    def refused(self, *, started: float, retry_after: float | None = None) -> None:
        self.rate.refuse(anyio.current_time(), started=started, retry_after=retry_after)
