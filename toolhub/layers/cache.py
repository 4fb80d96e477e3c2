"""Caches the answers of read-only tools for equal calls.

An answer is kept for the server's `ttl_s` seconds while there is room; the least recently used one makes room. Errors,
results with `is_error` and overload signals are not kept. A hit waits for nothing. Behind it may be a store on disk
(`result_store.py`), whose results outlive the task and the hub.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace as otel

from toolhub.config import ServerSpec
from toolhub.config.models import SharedResultsSettings
from toolhub.config.server import CacheSettings
from toolhub.layers import Handler, Layer
from toolhub.layers.cache_key import CacheTarget, key_of
from toolhub.layers.clone import clone_json, size_of
from toolhub.layers.result_store import ResultStore
from toolhub.layers.trace import CallCounts
from toolhub.model import CacheStatistics, Call, Json, Result
from toolhub.overload import overload_in

# An answer larger than this part of a store is not kept: it would evict too many others.
_LARGEST_PART = 4


@dataclass(eq=False, slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0
    bytes: int = 0


@dataclass(eq=False, slots=True)
class _Entry:
    raw: Json
    expires: float
    size: int


class Store:
    """The answers of one server, least recently used first. `clock` counts seconds."""

    def __init__(self, settings: CacheSettings, counts: _Counts, clock: Callable[[], float]) -> None:
        self.scope = settings.scope
        self._ttl = settings.ttl_s
        self._room = settings.max_bytes
        self._bytes = 0
        self._counts = counts
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Store entries={len(self._entries)} bytes={self._bytes}/{self._room}>"

    def get(self, key: str) -> Result | None:
        """Return a copy of the kept answer."""
        entry = self._entries.get(key)
        if entry is not None and entry.expires <= self._clock():
            self._drop(key)
            entry = None
        if entry is None:
            self._counts.misses += 1
            return None
        self._counts.hits += 1
        self._entries.move_to_end(key)
        return Result(clone_json(entry.raw))

    def put(self, key: str, result: Result) -> None:
        """Keep a copy of an answer, unless it is there already or too large."""
        now = self._clock()
        known = self._entries.get(key)
        if known is not None:
            if known.expires > now:
                return
            self._drop(key)
        size = size_of(result.raw)
        if size > self._room // _LARGEST_PART:
            return
        self._entries[key] = _Entry(clone_json(result.raw), now + self._ttl, size)
        self._grow(size, 1)
        self._make_room(now)

    def close(self) -> None:
        """Drop everything and keep nothing more."""
        self._grow(-self._bytes, -len(self._entries))
        self._entries.clear()
        self._room = 0

    def _make_room(self, now: float) -> None:
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest].expires > now:
                if self._bytes <= self._room:
                    return
                self._counts.evictions += 1
            self._drop(oldest)

    def _drop(self, key: str) -> None:
        self._grow(-self._entries.pop(key).size, -1)

    def _grow(self, size: int, entries: int) -> None:
        self._bytes += size
        self._counts.bytes += size
        self._counts.entries += entries


class Caches:
    """The stores of a hub, or those of one of its tasks (`for_task()`). They share their counts."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = _Counts()
        self._wider: Caches | None = None
        self._stores: dict[tuple[str, float, int], Store] = {}

    def for_task(self) -> Caches:
        """Return the caches of a task. Servers with `cache.scope: hub` use the hub's stores."""
        own = Caches(clock=self._clock)
        own._counts = self._counts
        own._wider = self
        return own

    def store(self, spec: ServerSpec) -> Store | None:
        """Return the store for a server's answers; None if they are not kept.

        A store has the server's name as its key, so that `${task.*}` in a server does not make one store per task.
        """
        settings = spec.cache
        if settings is None:
            return None
        if settings.scope == "hub" and self._wider is not None:
            return self._wider.store(spec)
        name = (spec.name, settings.ttl_s, settings.max_bytes)
        store = self._stores.get(name)
        if store is None:
            store = self._stores[name] = Store(settings, self._counts, self._clock)
        return store

    def close(self) -> None:
        """Drop everything. An answer that arrives later is not kept."""
        for store in self._stores.values():
            store.close()

    def statistics(self) -> CacheStatistics:
        """Return the counts of the hub and all its tasks."""
        counted = self._counts
        return CacheStatistics(counted.hits, counted.misses, counted.evictions, counted.entries, counted.bytes)


@dataclass(frozen=True)
class SharedResults:
    """The store on disk, and who shares its results."""

    store: ResultStore
    settings: SharedResultsSettings

    def key_of(self, call: Call, target: CacheTarget) -> str | None:
        """Return the key of a call's result; None if it is not shared."""
        run = call.share_key.run
        if target.spec.is_stateful or (self.settings.scope == "run" and not run):
            return None
        return key_of(call, target, "hub", run if self.settings.scope == "run" else "")

    async def get(self, key: str, spec: ServerSpec) -> Result | None:
        ttl = spec.cache.ttl_s if spec.cache is not None else self.settings.ttl_s
        found = await self.store.get(key, ttl=ttl)
        return None if found is None else Result(found)

    async def put(self, key: str, spec: ServerSpec, result: Result) -> None:
        await self.store.put(key, result.raw, secrets=spec.secrets)


def is_read(call: Call) -> bool:
    """Whether the answer may be kept. That to a prefetch is none: the tool is not executed."""
    return call.policy.read_only and call.early != "prefetch"


def cache(
    caches: Caches,
    target_of: Callable[[Call], CacheTarget],
    shared: SharedResults | None = None,
    counts: CallCounts | None = None,
) -> Layer:
    """Answer from memory or disk, where the tool is declared read-only.

    Memory: for servers that have a `cache`. shared: the store on disk; `counts` counts what comes from it.
    """

    def layer(inner: Handler) -> Handler:
        def handle(call: Call) -> Coroutine[Any, Any, Result]:
            if not is_read(call):
                return inner(call)
            store = caches.store(target_of(call).spec)
            key = None if store is None else key_of(call, target_of(call), store.scope)
            return through_disk(call) if store is None or key is None else through_memory(call, store, key)

        async def through_memory(call: Call, store: Store, key: str) -> Result:
            kept = store.get(key)
            if kept is not None:
                return kept
            result = await through_disk(call)
            if _may_be_kept(result):
                store.put(key, result)
            return result

        def through_disk(call: Call) -> Coroutine[Any, Any, Result]:
            key = None if shared is None else shared.key_of(call, target_of(call))
            return inner(call) if shared is None or key is None else from_disk(call, shared, key)

        async def from_disk(call: Call, shared: SharedResults, key: str) -> Result:
            spec = target_of(call).spec
            found = await shared.get(key, spec)
            if found is not None:
                if counts is not None:
                    counts.shared_results += 1
                otel.get_current_span().set_attribute("toolhub.shared_result", True)
                return found
            result = await inner(call)
            if _may_be_kept(result):
                await shared.put(key, spec, result)
            return result

        return handle

    return layer


def _may_be_kept(result: Result) -> bool:
    return not result.is_error and overload_in(result.raw) is None
