"""What all sessions of a hub may use together: processes, memory, file descriptors.

When a start finds no room, the session that was idle longest is ended, if ending it loses no state. Otherwise the start
waits until a session ends or becomes idle, or memory is freed. A session that serves a call is never ended.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.abc

from toolhub.errors import Overloaded
from toolhub.limits.descriptors import open_descriptors
from toolhub.limits.fair_queue import FairQueue
from toolhub.model import BudgetStatistics, FairShareKey

# The hub's ends of three pipes and of the line to the shim.
FILES_PER_SESSION = 4

logger = logging.getLogger(__name__)


class Evictable(Protocol):
    """What the budget needs of a slot."""

    @property
    def idle_seconds(self) -> float: ...

    @property
    def may_be_evicted(self) -> bool:
        """Whether it has an idle session whose end loses no state."""
        ...

    async def stop_if_idle(self, limit: float) -> bool: ...


@dataclass(eq=False)
class _WaitingStart:
    wakeup: anyio.Event = field(default_factory=anyio.Event)
    is_in: bool = False


class Budget:
    """Counts what sessions use and makes room for more. A limit of None is no limit.

    slots: returns all slots of the hub. owners: the task group in which sessions are ended.
    """

    def __init__(
        self,
        *,
        processes: int | None = None,
        memory_bytes: int | None = None,
        open_files: int | None = None,
        slots: Callable[[], Iterable[Evictable]],
        owners: anyio.abc.TaskGroup,
    ) -> None:
        self.processes = 0
        self.memory_bytes: int | None = None
        """As last measured; None before the first measurement."""
        self.evictions = 0
        self._limits = (processes, memory_bytes, open_files)
        self._slots = slots
        self._owners = owners
        self._waiting: FairQueue[_WaitingStart] = FairQueue()
        self._ending: set[Evictable] = set()
        self._refusals = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def room(self, server: str, share_key: FairShareKey, timeout: float) -> AsyncIterator[None]:
        """Hold room for one session of a process.

        timeout: seconds. Raises Overloaded when there is no room until then.
        """
        if self._waiting or self._shortage() is not None:
            await self._wait(server, share_key, timeout)
        else:
            self.processes += 1
        try:
            yield
        finally:
            self.processes -= 1
            self.check()

    async def _wait(self, server: str, share_key: FairShareKey, timeout: float) -> None:
        waiter = _WaitingStart()
        ticket = self._waiting.push(waiter, share_key)
        try:
            with anyio.move_on_after(timeout):
                self.check()
                await waiter.wakeup.wait()
        except BaseException:
            if waiter.is_in:
                self.processes -= 1
                self.check()
            raise
        finally:
            self._waiting.remove(ticket)
        if not waiter.is_in:
            self._refusals += 1
            raise Overloaded(
                f"no room to start server {server!r} within {timeout:g} s: {self._shortage() or 'others came first'}, "
                "and no idle session could be ended to make room. Try again later, or raise the limit",
                server=server,
                retry_after=timeout,
            )

    def check(self) -> None:
        """Admit waiting starts for which there is room, and end idle sessions for the others.

        Called whenever a session ended or became idle.
        """
        while self._waiting and self._shortage() is None:
            waiter = self._waiting.pop()
            waiter.is_in = True
            self.processes += 1
            waiter.wakeup.set()
        # Each session that is ending already makes room for one start.
        for _ in range(len(self._waiting) - len(self._ending)):
            if not self._evict():
                return

    def _evict(self) -> bool:
        """Begin to end the session that was idle longest; False when no session can be ended."""
        candidates = [slot for slot in self._slots() if slot.may_be_evicted and slot not in self._ending]
        if not candidates:
            return False
        victim = max(candidates, key=lambda slot: slot.idle_seconds)
        self._ending.add(victim)
        self._owners.start_soon(self._end, victim)
        return True

    async def _end(self, victim: Evictable) -> None:
        try:
            if await victim.stop_if_idle(0):
                self.evictions += 1
        finally:
            self._ending.discard(victim)
        self.check()

    def _shortage(self) -> str | None:
        """Say what is short for one more session; None when there is room."""
        processes, memory_bytes, open_files = self._limits
        if processes is not None and self.processes >= processes:
            return f"{self.processes} of {processes} processes are in use (limits.processes)"
        if memory_bytes is not None and (self.memory_bytes or 0) >= memory_bytes:
            used = (self.memory_bytes or 0) / 2**20
            return f"{used:,.0f} of {memory_bytes / 2**20:,.0f} MiB are in use (limits.memory_bytes)"
        if open_files is not None and (used_files := open_descriptors()) + FILES_PER_SESSION > open_files:
            return f"{used_files} of {open_files} descriptors are open (limits.open_files)"
        return None

    def measured(self, memory_bytes: int) -> None:
        """Take a new measurement of the memory of everything below the hub. Over the limit, idle sessions are ended."""
        self.memory_bytes = memory_bytes
        limit = self._limits[1]
        if limit is not None and memory_bytes > limit and not self._ending and not self._evict():
            logger.warning("%s, and no idle session can be ended", self._shortage())
        self.check()

    def statistics(self) -> BudgetStatistics:
        processes, memory_bytes, open_files = self._limits
        return BudgetStatistics(
            processes=self.processes,
            processes_limit=processes,
            memory_bytes=self.memory_bytes,
            memory_limit=memory_bytes,
            open_files=open_descriptors(),
            open_files_limit=open_files,
            waiting=self.waiting,
            evictions=self.evictions,
            refusals=self._refusals,
        )
