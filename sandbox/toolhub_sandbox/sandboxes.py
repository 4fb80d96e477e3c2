"""All sandboxes of a hub or a program: the limits, the warm pools, and which owner has which sandbox."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

from toolhub.config import SandboxProfile, SandboxSettings
from toolhub.owned import Held, hold
from toolhub_sandbox.check import Check, check
from toolhub_sandbox.errors import SandboxLimit, SandboxNotFound, SandboxUnavailable
from toolhub_sandbox.model import Isolation
from toolhub_sandbox.protocol import Backend, Sandbox

StartLimiter = Callable[[], AbstractAsyncContextManager[object]]
"""Returns a context manager that is held while one sandbox starts. Leaving it must not wait."""

# A hosted service gets one request for each sandbox, and may answer slowly.
_CLOSE_S = 30.0
# The owner of the sandboxes that `Sandboxes.create()` makes.
_NO_TASK = "this program"


@dataclass(frozen=True, slots=True)
class SandboxStatistics:
    """Counts of one hub. memory_bytes: of all that run; None where the backend cannot tell."""

    live: int
    ready: int
    created: int
    pool_hits: int
    pool_misses: int
    memory_bytes: int | None


class Sandboxes:
    """Starts sandboxes and ends all of them when it is left. Use it with `async with`, once.

    `create()` is for a program that has no tasks. A hub gives each task its own `for_owner(task)`.
    """

    def __init__(self, settings: SandboxSettings | None = None, *, start_limiter: StartLimiter = nullcontext) -> None:
        """Nothing starts yet: the backend starts with the first sandbox.

        settings: the section `sandbox` of a config; None: its defaults.
        start_limiter: bounds how many sandboxes start at once.
        """
        self.settings = settings or SandboxSettings()
        self.created = 0
        self._start_limiter = start_limiter
        self._budget = self.settings.memory_budget_bytes or _physical_memory() // 2
        self._owned: set[OwnerSandboxes] = set()
        self._without_task = self.for_owner(_NO_TASK)
        self._pools: dict[str, WarmPool] = {}
        self._backend: Held[Backend] | None = None
        self._opening = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._context = self._run()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            except Exception as exc:
                failure = exc  # raised below: the task group would wrap it in a group
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
                    await self.aclose()
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        return f"<Sandboxes {self.settings.backend} live={self.live} pools={list(self._pools.values())}>"

    async def create(self, profile: str | None = None) -> Sandbox:
        """Return a new sandbox. It ends with `kill()`, or when this object is left.

        profile: a name from the config; None: the default. Raises SandboxLimit, SandboxUnavailable.
        """
        return await self._without_task.create(profile)

    def for_owner(self, owner: str) -> OwnerSandboxes:
        """Return the place for the sandboxes of one owner, such as a task. Close it when the owner ends."""
        owned = OwnerSandboxes(owner, self)
        self._owned.add(owned)
        return owned

    @property
    def live(self) -> int:
        """How many sandboxes have an owner or are being made for one."""
        return sum(owned.count for owned in self._owned)

    @property
    def memory_bytes(self) -> int | None:
        return self._backend.value.memory_bytes if self._backend is not None else None

    async def isolation(self) -> Isolation:
        """Return what this machine really enforces. Raises SandboxUnavailable."""
        return (await self._opened()).isolation

    async def check(self) -> Check:
        """Make a sandbox and look at it from inside. Raises SandboxUnavailable, SandboxLimit."""
        began = time.perf_counter()
        isolation = await self.isolation()
        sandbox = await self.take(None)
        try:
            return await check(sandbox, isolation, began)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
                await sandbox.kill()

    def statistics(self) -> SandboxStatistics:
        return SandboxStatistics(
            live=self.live,
            ready=sum(pool.ready for pool in self._pools.values()),
            created=self.created,
            pool_hits=sum(pool.hits for pool in self._pools.values()),
            pool_misses=sum(pool.misses for pool in self._pools.values()),
            memory_bytes=self.memory_bytes,
        )

    async def warm(self, profile: str | None = None) -> None:
        """Start filling a profile's pool. Raises SandboxUnavailable."""
        pool = await self._pool(self._profile_name(profile))
        pool.grow()

    async def take(self, profile: str | None) -> Sandbox:
        """Return a sandbox without an owner: the caller must kill it. Raises SandboxLimit, SandboxUnavailable."""
        name = self._profile_name(profile)
        if self.live > self.settings.max_sandboxes:
            raise _limit("max_sandboxes", f"the hub has {self.settings.max_sandboxes} sandboxes")
        if not self._has_memory():
            used = f"all sandboxes together use {self.memory_bytes} of {self._budget} bytes"
            raise _limit("memory_budget_bytes", used)
        try:
            pool = await self._pool(name)
            sandbox = await pool.take()
        except Exception as exc:
            if self._closed:  # the error is a consequence of that
                raise self._unavailable() from exc
            raise
        self.created += 1
        return sandbox

    def _profile_name(self, profile: str | None) -> str:
        name = profile or self.settings.default_profile
        if name not in self.settings.profiles:
            known = ", ".join(sorted(self.settings.profiles))
            raise SandboxUnavailable(f"there is no sandbox profile {name!r}; sandbox.profiles has {known}")
        return name

    def _unavailable(self) -> SandboxUnavailable:
        return SandboxUnavailable("the hub's sandboxes are closed; open the hub again")

    @property
    def _task_group(self) -> anyio.abc.TaskGroup:
        if self._tasks is None:
            raise RuntimeError("open Sandboxes with `async with` before you use it")
        return self._tasks

    def _has_memory(self) -> bool:
        used = self.memory_bytes
        return used is None or used < self._budget

    async def _pool(self, name: str) -> WarmPool:
        backend = await self._opened()
        pool = self._pools.get(name)
        if pool is None:
            profile = self._profile(name)
            pool = self._pools[name] = WarmPool(
                name, profile, backend=backend, start_limiter=self._start_limiter, may_grow=self._has_memory
            )
            if profile.pool:
                self._task_group.start_soon(pool.refill)
        return pool

    def _profile(self, name: str) -> SandboxProfile:
        profile = self.settings.profiles[name]
        if self.settings.backend == "e2b":  # E2B charges for sandboxes that are kept ready
            return profile.model_copy(update={"pool": 0})
        return profile

    async def _opened(self) -> Backend:
        async with self._opening:
            if self._closed:
                raise self._unavailable()
            if self._backend is None or self._backend.is_closed:
                self._pools.clear()
                self._backend = await hold(self._task_group, _open_backend(self.settings), name="sandbox backend")
        return self._backend.value

    def forget(self, owned: OwnerSandboxes) -> None:
        self._owned.discard(owned)

    async def aclose(self) -> None:
        """End every sandbox; there will be no more. Idempotent."""
        self._closed = True
        for pool in self._pools.values():
            pool.close()
        async with anyio.create_task_group() as closing:
            for owned in list(self._owned):
                closing.start_soon(owned.aclose)
        if self._backend is not None:
            await self._backend.aclose()


class OwnerSandboxes:
    """The sandboxes of one owner: a task, or a server that runs alone. They end with the owner."""

    def __init__(self, owner: str, sandboxes: Sandboxes) -> None:
        self.owner = owner
        self._sandboxes = sandboxes
        self._own: dict[str, Sandbox] = {}
        self._being_made = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<OwnerSandboxes {self.owner} {list(self._own)}>"

    @property
    def settings(self) -> SandboxSettings:
        return self._sandboxes.settings

    @property
    def count(self) -> int:
        """How many sandboxes this owner has, including those that are being made."""
        self._own = {name: sandbox for name, sandbox in self._own.items() if sandbox.is_alive}
        return len(self._own) + self._being_made

    @property
    def sandboxes(self) -> Mapping[str, Sandbox]:
        """The live sandboxes by id."""
        return {name: sandbox for name, sandbox in self._own.items() if sandbox.is_alive}

    async def create(self, profile: str | None = None) -> Sandbox:
        """Return a new sandbox, from the pool where one is ready.

        profile: a name from the config; None: the default. Raises SandboxLimit, SandboxUnavailable.
        """
        if self._closed:
            raise SandboxUnavailable(f"{self.owner!r} is closed; it gets no more sandboxes")
        most = self.settings.max_per_task
        if self.count >= most:
            raise _limit("max_per_task", f"{self.owner!r} has {most} sandboxes")
        self._being_made += 1
        try:
            sandbox = await self._sandboxes.take(profile)
        finally:
            self._being_made -= 1
        self._own[sandbox.id] = sandbox  # no await before this: a cancellation would leak the sandbox
        if self._closed:
            with anyio.CancelScope(shield=True):
                await sandbox.kill()
            raise SandboxUnavailable(f"{self.owner!r} was closed while its sandbox was being made")
        return sandbox

    def get(self, sandbox_id: str) -> Sandbox:
        """Return a live sandbox of this owner. Raises SandboxNotFound."""
        sandbox = self._own.get(sandbox_id)
        if sandbox is None or not sandbox.is_alive:
            raise SandboxNotFound(f"{self.owner!r} has no sandbox {sandbox_id!r}: it has ended or never was there")
        return sandbox

    async def aclose(self) -> None:
        """Kill all of them and wait until they are gone. Idempotent; nothing can be created afterwards."""
        self._closed = True
        self._sandboxes.forget(self)
        async with anyio.create_task_group() as killing:
            for sandbox in list(self._own.values()):
                killing.start_soon(sandbox.kill)
        self._own.clear()


def open_sandboxes(settings: SandboxSettings | None = None, *, start_limiter: StartLimiter = nullcontext) -> Sandboxes:
    """Return the sandboxes of a hub, which finds this function by its entry point."""
    return Sandboxes(settings, start_limiter=start_limiter)


def _open_backend(settings: SandboxSettings) -> AbstractAsyncContextManager[Backend]:
    """Import only the backend that the settings name: each needs other packages or another system."""
    if settings.backend == "e2b":
        from toolhub_sandbox.e2b import open_e2b

        return open_e2b(settings)
    if settings.backend == "bwrap":
        from toolhub_sandbox.local.bwrap import open_bwrap

        return open_bwrap(settings)
    from toolhub_sandbox.local import open_local

    return open_local(settings)


def _limit(key: str, what: str) -> SandboxLimit:
    return SandboxLimit(f"{what} (sandbox.{key}); end some or raise the limit", limit=key)


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# --- the warm pool ----------------------------------------------------------------------------------------------------


# The new owner uses its sandbox now, and making the next one competes for the same cores. While others are ready, the
# pool waits this long.
SETTLE_S = 0.02

logger = logging.getLogger(__name__)


class WarmPool:
    """The sandboxes of one profile that are kept ready. A task must run `refill()`, which first waits for a `take()`.

    may_grow: asked before a sandbox is made for the pool rather than for a caller.
    """

    def __init__(
        self,
        name: str,
        profile: SandboxProfile,
        *,
        backend: Backend,
        start_limiter: StartLimiter,
        may_grow: Callable[[], bool],
        settle_s: float = SETTLE_S,
    ) -> None:
        self.name = name
        self.profile = profile
        self.hits = self.misses = 0
        self._backend = backend
        self._start_limiter = start_limiter
        self._may_grow = may_grow
        self._settle_s = settle_s
        self._ready: deque[Sandbox] = deque()
        self._being_made = 0
        self._wanted = anyio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<WarmPool {self.name} ready={self.ready} hits={self.hits} misses={self.misses}>"

    @property
    def ready(self) -> int:
        return sum(sandbox.is_alive for sandbox in self._ready)

    async def take(self) -> Sandbox:
        """Return a ready sandbox, or make one. Raises as `Backend.create`."""
        while self._ready:
            sandbox = self._ready.popleft()
            if sandbox.is_alive:
                self.hits += 1
                self._wanted.set()
                return sandbox
        self.misses += 1
        self._being_made += 1
        try:
            return await self._make()
        finally:
            self._being_made -= 1
            self._wanted.set()

    async def _make(self) -> Sandbox:
        async with self._start_limiter():
            return await self._backend.create(self.name, self.profile)

    async def refill(self) -> None:
        """Keep the pool at its size. Callers of `take()` go first."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            if self._ready and not self._closed:
                await anyio.sleep(self._settle_s)
            try:
                while not (self._closed or self._being_made) and self.ready < self.profile.pool and self._may_grow():
                    self._ready.append(await self._make())
            except Exception as exc:
                if self._closed:
                    return
                # The next `take()` meets the same error and tells its caller. Raised here, it would end the hub.
                logger.warning("the pool of profile %s cannot be refilled: %s", self.name, exc)

    def grow(self) -> None:
        """Ask for the pool to be filled, without waiting."""
        self._wanted.set()

    def close(self) -> None:
        """Make no more sandboxes. Those that are ready end with the backend."""
        self._closed = True
        self._wanted.set()
