"""A concurrency limiter with a bounded, fair queue.

At most `limit` calls run at once and at most `queue` wait. A call that cannot start before its deadline is refused at
once. Waiting calls are admitted fairly between runs, and within a run between its tasks. When the queue is full, the
newest call of the task that queued most makes room for a call of a task that queued less.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import anyio

from toolhub.errors import Overloaded
from toolhub.limits.fair_queue import FairQueue, Ticket
from toolhub.model import FairShareKey, LimiterStatistics

if TYPE_CHECKING:
    from toolhub.limits.adaptive import AdaptiveLimit


# How much one call that ends moves the estimate of how long a place is held.
_SMOOTHING = 0.1


# With fewer ended calls there is no estimate, and no call is refused for it.
_ENOUGH = 8


@dataclass(eq=False)
class WaitStats:
    """How long the calls of one task waited in all, and how many wait now."""

    waiting: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class _WaitingCall:
    share_key: FairShareKey
    wakeup: anyio.Event = field(default_factory=anyio.Event)
    outcome: Literal["admitted", "shed"] | None = None
    """None while the call waits."""


class PreemptiblePlaces:
    """The places that speculative work holds. A call that finds none takes one of them, and `cancel` is called."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.held: list[ConcurrencyLimiter] = []
        self.cancel = cancel

    def keep(self) -> None:
        """Hold the places for a call: from now on none is taken away."""
        for limiter in self.held:
            limiter.preemptible.remove(self)

    def leave(self) -> None:
        """Give back the places that were not taken."""
        for limiter in self.held:
            if self in limiter.preemptible:
                limiter.preemptible.remove(self)
            limiter.leave()
        self.held.clear()


class ConcurrencyLimiter:
    """Admits at most `limit` calls at once and lets at most `queue` wait.

    adaptive: finds the limit by measuring, up to its maximum. `limit` is then ignored.
    """

    def __init__(self, name: str, limit: int, queue: int, *, adaptive: AdaptiveLimit | None = None) -> None:
        self.name = name
        self.in_use = 0
        self.adaptive = adaptive
        self.preemptible: list[PreemptiblePlaces] = []
        self._limit = limit
        self._queue = queue
        self._waiting: FairQueue[_WaitingCall] = FairQueue()
        self._refusals = 0
        self._waits = 0
        self._waited_s = 0.0
        self._held_s = 0.0
        self._departures = 0

    def __repr__(self) -> str:
        return f"<ConcurrencyLimiter {self.name} {self.in_use}/{self.limit} waiting={self.waiting}>"

    @property
    def limit(self) -> int:
        return self._limit if self.adaptive is None else self.adaptive.limit

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # --- in and out -------------------------------------------------------------------------------------------------

    def try_enter(self) -> bool:
        """Take a place if one is free or a preemptible one exists, and no call waits for it. Never waits."""
        if self._waiting or self._pause_left() > 0 or (self.in_use >= self.limit and not self._preempt()):
            return False
        self.in_use += 1
        return True

    def try_enter_preemptible(self, places: PreemptiblePlaces) -> bool:
        """Take a place that calls may take away, if no call waits and at least half of the places are free."""
        if self._waiting or self._pause_left() > 0 or 2 * self.in_use >= self.limit:
            return False
        self.in_use += 1
        self.preemptible.append(places)
        places.held.append(self)
        return True

    def _preempt(self) -> bool:
        """Free the preemptible place that was taken last. Return whether there was one."""
        if not self.preemptible:
            return False
        places = self.preemptible.pop()
        places.held.remove(self)
        self.in_use -= 1
        places.cancel()
        return True

    async def wait(self, share_key: FairShareKey, deadline: float = math.inf) -> None:
        """Wait for a place, in fair turns, and take it.

        deadline: absolute, on the anyio clock. Raises Overloaded when the queue is full, when the place would come
        after the deadline, or when the queue is full and a task that queued less needs the room.
        """
        began = anyio.current_time()
        self._refuse_if_too_late(share_key, deadline - began)
        waiter = _WaitingCall(share_key)
        ticket = self._waiting.push(waiter, share_key)
        self._waits += 1
        try:
            await self._wait_admitted(waiter)
        except BaseException:
            self._give_up(waiter, ticket)
            raise
        finally:
            self._waited_s += anyio.current_time() - began
        if waiter.outcome == "shed":
            raise self._refused(
                share_key, f"its queue of {self._queue} calls is full, and your task queued most of them"
            )

    async def _wait_admitted(self, waiter: _WaitingCall) -> None:
        while waiter.outcome is None:
            with anyio.move_on_after(self._pause_left() or None):
                await waiter.wakeup.wait()
            if waiter.wakeup.is_set():
                waiter.wakeup = anyio.Event()
            self.admit()

    def _give_up(self, waiter: _WaitingCall, ticket: Ticket) -> None:
        if waiter.outcome == "admitted":  # it was cancelled in the moment in which it was admitted
            self.leave()
        else:
            self._waiting.remove(ticket)

    def leave(self, held_s: float | None = None) -> None:
        """Give a place back. held_s: how long it was held; None to leave it out of the estimate."""
        self.in_use -= 1
        if held_s is not None:
            self._departures += 1
            share = max(_SMOOTHING, 1 / self._departures)
            self._held_s += (held_s - self._held_s) * share
        if self._waiting:
            self.admit()

    def admit(self) -> None:
        """Admit waiting calls, in fair order, while there are free places."""
        if self._pause_left() > 0:
            return
        while self._waiting and (self.in_use < self.limit or self._preempt()):
            waiter = self._waiting.pop()
            waiter.outcome = "admitted"
            self.in_use += 1
            waiter.wakeup.set()

    def slow_down(self, retry_after: float | None) -> None:
        """The server said that it is overloaded. retry_after: the seconds it asked for, if it did."""
        if self.adaptive is None:
            return
        self.adaptive.overloaded(anyio.current_time(), retry_after, self.in_use)
        for waiter in self._waiting:  # each waits on until the pause ends, even if no call leaves before that
            waiter.wakeup.set()

    def _pause_left(self) -> float:
        if self.adaptive is None or not self.adaptive.paused_until:
            return 0.0
        return max(0.0, self.adaptive.paused_until - anyio.current_time())

    # --- refusing ---------------------------------------------------------------------------------------------------

    def expected_wait(self, share_key: FairShareKey) -> float | None:
        """Estimate the seconds until this task would get a place; None while too few calls have ended."""
        if self.in_use < self.limit and not self._waiting:
            return self._pause_left()
        if self._departures < _ENOUGH:
            return None
        turns = self._waiting.ahead_of(share_key) + 1
        return self._pause_left() + turns * self._held_s / max(1, self.limit)

    def _refuse_if_too_late(self, share_key: FairShareKey, seconds_left: float) -> None:
        expected = self.expected_wait(share_key)
        if expected is not None and expected > seconds_left:
            reason = f"this call would get a place in about {expected:.1f} s, after its deadline"
            raise self._refused(share_key, reason)
        if self.waiting >= self._queue:
            victim = self._waiting.shed_longest(share_key)
            if victim is None:
                raise self._refused(share_key, f"its queue of {self._queue} is full")
            victim.outcome = "shed"
            victim.wakeup.set()

    def _refused(self, share_key: FairShareKey, reason: str) -> Overloaded:
        self._refusals += 1
        expected = self.expected_wait(share_key)
        return Overloaded(
            f"{self.name} is full: {self.in_use} calls run and {self.waiting} wait (limit {self.limit}); {reason}. "
            "Come back later or raise the limit",
            retry_after=round(max(expected, 0.1), 2) if expected is not None else None,
        )

    def statistics(self) -> LimiterStatistics:
        return LimiterStatistics(
            self.name, self.limit, self.in_use, self.waiting, self._refusals, self._waits, self._waited_s
        )

    @asynccontextmanager
    async def place(self, share_key: FairShareKey) -> AsyncIterator[None]:
        """Hold a place for the block."""
        if not self.try_enter():
            await self.wait(share_key)
        began = anyio.current_time()
        try:
            yield
        finally:
            self.leave(anyio.current_time() - began)
