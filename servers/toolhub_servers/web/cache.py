"""A cache whose answers are computed once for all tasks that wait for them, and then kept for a while.

An answer is computed in a task of the cache's own task group, not in the caller's: a cancelled caller does not cancel
it for the others. When the last waiting caller is gone, the computation is cancelled. An error goes to all waiting
callers and is not kept: a failing service would otherwise be asked by each of them, one after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc

from toolhub_servers.web.errors import WebError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """hits: answered from the cache. joined: waited for a computation that was running. misses: computations."""

    hits: int
    misses: int
    joined: int
    errors: int
    cancelled: int
    evicted: int
    in_flight: int
    entries: int
    size_bytes: int


@dataclass(eq=False)
class _Flight(Generic[T]):
    """One computation. waiting: callers; landed: it has a value or an error."""

    waiting: int = 0
    landed: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    value: T | None = None
    error: Exception | None = None
    traceback: TracebackType | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    value: Any
    size: int
    stale_at: float


class Cache:
    """Use `open_cache()`, usually through `resources.get_or_open()`. Any number of tasks may use it at once."""

    def __init__(self, owners: anyio.abc.TaskGroup, *, ttl_s: float, max_entries: int, max_bytes: int) -> None:
        self._owners = owners
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._flights: dict[Hashable, _Flight[Any]] = {}
        self._size = 0
        self._hits = self._misses = self._joined = self._errors = self._cancelled = self._evicted = 0

    def __repr__(self) -> str:
        return f"<Cache entries={len(self._entries)} bytes={self._size} in flight={len(self._flights)}>"

    async def get(
        self, key: Hashable, make: Callable[[], Awaitable[T]], *, size: Callable[[T], int] | None = None
    ) -> T:
        """Return the value of a key: the kept one, or the one that is being computed, or what `make()` returns.

        Equal keys must mean equal values: put everything that decides the answer into the key. All callers get the same
        object and must not change it. `make` runs outside the caller's cancel scopes, so it must have its own deadline.

        size: bytes of a value, counted against `max_bytes`; the default is the length of its repr. Raises what `make()`
        raises, WebError if the cache is closed meanwhile.
        """
        entry = self._fresh(key)
        if entry is not None:
            self._hits += 1
            value: T = entry.value
            return value
        flight: _Flight[T] | None = self._flights.get(key)
        if flight is None:
            self._misses += 1
            flight = self._flights[key] = _Flight()
            self._owners.start_soon(self._fly, key, flight, make, size or _length_of_repr, name="cache flight")
        else:
            self._joined += 1
        return await self._wait_landed(key, flight)

    def forget(self, key: Hashable) -> None:
        """Drop what is kept for a key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry.size

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            hits=self._hits,
            misses=self._misses,
            joined=self._joined,
            errors=self._errors,
            cancelled=self._cancelled,
            evicted=self._evicted,
            in_flight=len(self._flights),
            entries=len(self._entries),
            size_bytes=self._size,
        )

    async def _wait_landed(self, key: Hashable, flight: _Flight[T]) -> T:
        flight.waiting += 1
        try:
            await flight.landed.wait()
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.landed.is_set():
                self._cancelled += 1
                self._end(key, flight)  # at once: a new caller must not join a cancelled computation
                flight.scope.cancel()
        if flight.error is not None:
            # One exception is raised in many tasks. Each raises it with the traceback of the computation alone.
            raise flight.error.with_traceback(flight.traceback)
        value: T = flight.value  # type: ignore[assignment]  # T may include None
        return value

    async def _fly(
        self, key: Hashable, flight: _Flight[T], make: Callable[[], Awaitable[T]], size: Callable[[T], int]
    ) -> None:
        flight.error = WebError("the cache was closed")  # stays if this task is cancelled with the cache
        try:
            with flight.scope:
                flight.value = await make()
                self._keep(key, flight.value, size(flight.value))
                flight.error = None
        except Exception as exc:
            self._errors += 1
            flight.error, flight.traceback = exc, exc.__traceback__
        finally:
            self._end(key, flight)
            flight.landed.set()

    def _end(self, key: Hashable, flight: _Flight[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _fresh(self, key: Hashable) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.stale_at <= anyio.current_time():
            self.forget(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def _keep(self, key: Hashable, value: Any, size: int) -> None:
        self.forget(key)
        if size > self._max_bytes:
            return
        self._entries[key] = _Entry(value, size, anyio.current_time() + self._ttl_s)
        self._size += size
        while self._size > self._max_bytes or len(self._entries) > self._max_entries:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size
            self._evicted += 1


def _length_of_repr(value: object) -> int:
    return len(repr(value))


@asynccontextmanager
async def open_cache(
    *, ttl_s: float = 900, max_entries: int = 10_000, max_bytes: int = 64 << 20
) -> AsyncIterator[Cache]:
    """Open a cache. Its computations end with the block.

    Shared by a hub: `await resources.get_or_open("cache serper", lambda: open_cache(ttl_s=900))`.
    """
    async with anyio.create_task_group() as owners:
        try:
            yield Cache(owners, ttl_s=ttl_s, max_entries=max_entries, max_bytes=max_bytes)
        finally:
            owners.cancel_scope.cancel()
