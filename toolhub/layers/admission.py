"""Bounded concurrency with a bounded queue: what cannot be taken in is refused at once, not left to rot.

A call takes a place at every gate of its way, always in the same order (task, session, server, hub), so that no two
calls can hold what the other waits for. Who waits is let in fairly between runs and between the tasks of a run; when a
queue is full, the newest call of whoever queued most makes room for one of somebody who queued less.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import anyio

from toolhub.errors import Overloaded
from toolhub.fair_queue import FairQueue, Ticket
from toolhub.layers import Handler, Layer
from toolhub.model import Call, Claimant, GateStatistics, Result
from toolhub.pressure import pressure_of

if TYPE_CHECKING:
    from toolhub.adaptive import AdaptiveLimit

# How much one departure moves the estimate of how long a place is held.
_SMOOTHING = 0.1
# An estimate from fewer departures refuses nobody.
_ENOUGH = 8


@dataclass(eq=False)
class Waits:
    """What somebody's calls spent waiting; `waiting` do so now."""

    waiting: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class _Waiter:
    claimant: Claimant
    news: anyio.Event = field(default_factory=anyio.Event)
    verdict: Literal["in", "out"] | None = None
    """None while it waits."""


class Gate:
    """Lets `limit` in at once and keeps at most `queue` waiting.

    adaptive: finds the limit by itself, up to its maximum; `limit` is then ignored.
    """

    def __init__(self, name: str, limit: int, queue: int, *, adaptive: AdaptiveLimit | None = None) -> None:
        self.name = name
        self.in_use = 0
        self.adaptive = adaptive
        self._limit = limit
        self._queue = queue
        self._waiting: FairQueue[_Waiter] = FairQueue()
        self._refusals = 0
        self._waits = 0
        self._waited_s = 0.0
        self._held_s = 0.0
        self._departures = 0

    def __repr__(self) -> str:
        return f"<Gate {self.name} {self.in_use}/{self.limit} waiting={self.waiting}>"

    @property
    def limit(self) -> int:
        return self._limit if self.adaptive is None else self.adaptive.limit

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # --- in and out -------------------------------------------------------------------------------------------------

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        if self.in_use >= self.limit or self._waiting or self._pause_left() > 0:
            return False
        self.in_use += 1
        return True

    async def wait(self, claimant: Claimant, deadline: float = math.inf) -> None:
        """Take a place when it is this claimant's turn.

        deadline: absolute, on anyio's clock. Raises Overloaded when the queue is full, when the turn would come after
        the deadline, or when somebody who queued less needs the room.
        """
        began = anyio.current_time()
        self._refuse_if_hopeless(claimant, deadline - began)
        waiter = _Waiter(claimant)
        ticket = self._waiting.push(waiter, claimant)
        self._waits += 1
        try:
            await self._turn(waiter)
        except BaseException:
            self._give_up(waiter, ticket)
            raise
        finally:
            self._waited_s += anyio.current_time() - began
        if waiter.verdict == "out":
            raise self._refused(claimant, f"its queue of {self._queue} is full, and your task has most in it")

    async def _turn(self, waiter: _Waiter) -> None:
        while waiter.verdict is None:
            with anyio.move_on_after(self._pause_left() or None):
                await waiter.news.wait()
            if waiter.news.is_set():
                waiter.news = anyio.Event()
            self.admit()

    def _give_up(self, waiter: _Waiter, ticket: Ticket) -> None:
        if waiter.verdict == "in":  # its turn came in the moment in which it was cancelled
            self.leave()
        else:
            self._waiting.remove(ticket)

    def leave(self, held_s: float | None = None) -> None:
        """Give a place back. held_s: how long it was held, if that says something about the next."""
        self.in_use -= 1
        if held_s is not None:
            self._departures += 1
            share = max(_SMOOTHING, 1 / self._departures)
            self._held_s += (held_s - self._held_s) * share
        if self._waiting:
            self.admit()

    def admit(self) -> None:
        """Let in whoever's turn it is, as long as there are places."""
        if self._pause_left() > 0:
            return
        while self._waiting and self.in_use < self.limit:
            waiter = self._waiting.pop()
            waiter.verdict = "in"
            self.in_use += 1
            waiter.news.set()

    def slow_down(self, retry_after: float | None) -> None:
        """The other side said that this was too much, and perhaps for how many seconds it wants none."""
        if self.adaptive is None:
            return
        self.adaptive.overloaded(anyio.current_time(), retry_after, self.in_use)
        for waiter in self._waiting:  # each has to wait until the pause ends, though nobody may leave meanwhile
            waiter.news.set()

    def _pause_left(self) -> float:
        if self.adaptive is None or not self.adaptive.paused_until:
            return 0.0
        return max(0.0, self.adaptive.paused_until - anyio.current_time())

    # --- refusing ---------------------------------------------------------------------------------------------------

    def expected_wait(self, claimant: Claimant) -> float | None:
        """Seconds until a place would be this claimant's; None while there is too little to tell from."""
        if self.in_use < self.limit and not self._waiting:
            return self._pause_left()
        if self._departures < _ENOUGH:
            return None
        turns = self._waiting.ahead_of(claimant) + 1
        return self._pause_left() + turns * self._held_s / max(1, self.limit)

    def _refuse_if_hopeless(self, claimant: Claimant, seconds_left: float) -> None:
        expected = self.expected_wait(claimant)
        if expected is not None and expected > seconds_left:
            reason = f"the turn of this call would come in about {expected:.1f} s, after its deadline"
            raise self._refused(claimant, reason)
        if self.waiting >= self._queue:
            victim = self._waiting.push_out(claimant)
            if victim is None:
                raise self._refused(claimant, f"its queue of {self._queue} is full")
            victim.verdict = "out"
            victim.news.set()

    def _refused(self, claimant: Claimant, reason: str) -> Overloaded:
        self._refusals += 1
        expected = self.expected_wait(claimant)
        return Overloaded(
            f"{self.name} is full: {self.in_use} calls run and {self.waiting} wait (limit {self.limit}); {reason}. "
            "Come back later or raise the limit",
            retry_after=round(max(expected, 0.1), 2) if expected is not None else None,
        )

    def statistics(self) -> GateStatistics:
        return GateStatistics(
            self.name, self.limit, self.in_use, self.waiting, self._refusals, self._waits, self._waited_s
        )

    @asynccontextmanager
    async def place(self, claimant: Claimant) -> AsyncIterator[None]:
        """Hold a place for the block."""
        if not self.try_enter():
            await self.wait(claimant)
        began = anyio.current_time()
        try:
            yield
        finally:
            self.leave(anyio.current_time() - began)


def admission(gates_of: Callable[[Call], Sequence[Gate]], counts: Waits | None = None) -> Layer:
    """Take a place at each gate that `gates_of` names, in its order; tell the adaptive ones how the call went.

    counts: of the waiting at all of these gates together.
    """
    waits = counts or Waits()

    def layer(inner: Handler) -> Handler:
        async def handle(call: Call) -> Result:
            gates = gates_of(call)
            entered = 0
            began: float | None = None
            try:
                for gate in gates:
                    if not gate.try_enter():
                        await _wait(gate, call, waits)
                    entered += 1
                began = anyio.current_time()
                result = await inner(call)
            except BaseException:
                _leave(gates[:entered], call, began, None)
                raise
            _leave(gates, call, began, result)
            return result

        return handle

    return layer


async def _wait(gate: Gate, call: Call, waits: Waits) -> None:
    began = anyio.current_time()
    waits.waiting += 1
    try:
        await gate.wait(call.claimant, call.deadline)
    except Overloaded as exc:
        exc.call_id, exc.server, exc.tool = call.id, call.server, call.tool
        raise
    finally:
        waits.waiting -= 1
        waits.seconds += anyio.current_time() - began


def _leave(gates: Sequence[Gate], call: Call, began: float | None, result: Result | None) -> None:
    now = anyio.current_time()
    for gate in reversed(gates):
        if gate.adaptive is not None and began is not None:
            _learn(gate, gate.adaptive, call, result, now)
        gate.leave(now - began if began is not None else None)


def _learn(gate: Gate, limit: AdaptiveLimit, call: Call, result: Result | None, now: float) -> None:
    """What the end of a call says about the load of its server; the start of a session says nothing about it."""
    sent_at = call.delivery.sent_at
    if sent_at is None:
        return
    if result is None:
        if now >= call.deadline:
            limit.failed(call.tool, now - sent_at, gate.in_use, now)
        return
    pressure = pressure_of(result.raw)
    if pressure is not None:
        gate.slow_down(pressure.retry_after)
    elif not result.is_error:
        limit.observe(call.tool, now - sent_at, gate.in_use, now)
