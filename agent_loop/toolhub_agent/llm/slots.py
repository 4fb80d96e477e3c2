"""Slots: how many requests are at an endpoint at once. First come, first served; the number may change at any time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from toolhub_agent.errors import LlmUnavailable
from toolhub_agent.llm.limit import START

# More than this waiting for one endpoint is a runaway caller.
LONGEST_QUEUE = 10_000


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One endpoint's slots."""

    limit: int
    in_use: int
    waiting: int


@dataclass(eq=False)
class _Waiter:
    granted: anyio.Event = field(default_factory=anyio.Event)


@dataclass
class _Lane:
    limit: int
    in_use: int = 0
    waiters: deque[_Waiter] = field(default_factory=deque)

    def grant(self) -> None:
        """Hand free slots to those who wait longest."""
        while self.waiters and self.in_use < self.limit:
            self.in_use += 1
            self.waiters.popleft().granted.set()


class Slot:
    """A slot that is held; give it back once."""

    def __init__(self, slots: Slots, endpoint: str) -> None:
        self._slots: Slots | None = slots
        self.endpoint = endpoint

    def __repr__(self) -> str:
        return f"<Slot at {self.endpoint}, {'held' if self._slots else 'given back'}>"

    def release(self) -> None:
        """May be called again; that does nothing."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._give_back(self.endpoint)


class Slots:
    """The slots of all endpoints."""

    def __init__(self, limit: int = START) -> None:
        self._first_limit = limit
        self._lanes: dict[str, _Lane] = {}
        self._busy: anyio.Event | None = None

    def __repr__(self) -> str:
        lanes = ", ".join(f"{url}: {lane.in_use}/{lane.limit}+{len(lane.waiters)}" for url, lane in self._lanes.items())
        return f"<Slots {lanes or 'unused'}>"

    async def acquire(self, endpoint: str, *, deadline: float) -> Slot:
        """Return a slot once there is one. deadline: absolute, on the anyio clock.

        Raises LlmUnavailable if there was none until then.
        """
        lane = self._lane(endpoint)
        await anyio.lowlevel.checkpoint_if_cancelled()
        if lane.in_use < lane.limit:  # then nobody waits: whatever becomes free is handed over at once
            lane.in_use += 1
        else:
            await self._wait(endpoint, lane, deadline)
        self._tell_busy()
        return Slot(self, endpoint)

    @asynccontextmanager
    async def hold(self, endpoint: str, *, deadline: float) -> AsyncIterator[Slot]:
        """Hold a slot for the block; see `acquire`."""
        slot = await self.acquire(endpoint, deadline=deadline)
        try:
            yield slot
        finally:
            slot.release()

    def set_limit(self, endpoint: str, limit: int) -> None:
        """Below what is held: nobody is interrupted, nobody starts until enough have ended."""
        lane = self._lane(endpoint)
        lane.limit = max(1, limit)
        lane.grant()

    def statistics(self, endpoint: str) -> LaneStatistics:
        lane = self._lane(endpoint)
        return LaneStatistics(lane.limit, lane.in_use, len(lane.waiters))

    @property
    def is_busy(self) -> bool:
        return any(lane.in_use or lane.waiters for lane in self._lanes.values())

    async def wait_busy(self) -> None:
        """Return as soon as anyone holds a slot."""
        while not self.is_busy:
            if self._busy is None:
                self._busy = anyio.Event()
            await self._busy.wait()

    async def _wait(self, endpoint: str, lane: _Lane, deadline: float) -> None:
        if len(lane.waiters) >= LONGEST_QUEUE:
            raise LlmUnavailable(f"{endpoint}: {LONGEST_QUEUE} requests already wait for a slot", endpoint=endpoint)
        waiter = _Waiter()
        lane.waiters.append(waiter)
        try:
            with anyio.fail_at(deadline):
                await waiter.granted.wait()
        except BaseException as exc:
            # Whoever gives up although a slot was handed over in the same moment passes it on.
            if waiter.granted.is_set():
                self._give_back(endpoint)
            else:
                lane.waiters.remove(waiter)
            if isinstance(exc, TimeoutError):
                raise LlmUnavailable(_none_free(endpoint, lane), endpoint=endpoint) from None
            raise

    def _give_back(self, endpoint: str) -> None:
        lane = self._lanes[endpoint]
        lane.in_use -= 1
        lane.grant()

    def _tell_busy(self) -> None:
        if self._busy is not None:
            self._busy.set()
            self._busy = None

    def _lane(self, endpoint: str) -> _Lane:
        lane = self._lanes.get(endpoint)
        if lane is None:
            lane = self._lanes[endpoint] = _Lane(self._first_limit)
        return lane


def _none_free(endpoint: str, lane: _Lane) -> str:
    return f"{endpoint}: no slot became free in time ({lane.in_use} of {lane.limit} in use, {len(lane.waiters)} wait)"
