"""Sandboxes kept ready, per profile: the next one is there before somebody asks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import anyio

from toolhub.config import SandboxProfile
from toolhub_sandbox.protocol import Backend, Sandbox

StartPlace = Callable[[], AbstractAsyncContextManager[object]]

# Whoever got one uses it now; making the next competes for the same cores. While others are ready it can wait.
SETTLE_S = 0.02

logger = logging.getLogger(__name__)


class Pool:
    """The ready sandboxes of one profile. Somebody must run `refill()`; it does nothing before the first `take()`.

    start_place: bounds how many sandboxes are being made at once, in the whole hub; leaving it must not wait.
    may_grow: asked before one is made that nobody waits for.
    """

    def __init__(
        self,
        name: str,
        profile: SandboxProfile,
        *,
        backend: Backend,
        start_place: StartPlace,
        may_grow: Callable[[], bool],
        settle_s: float = SETTLE_S,
    ) -> None:
        self.name = name
        self.profile = profile
        self.hits = self.misses = 0
        self._backend = backend
        self._start_place = start_place
        self._may_grow = may_grow
        self._settle_s = settle_s
        self._ready: deque[Sandbox] = deque()
        self._being_made = 0
        self._wanted = anyio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {self.name} ready={self.ready} hits={self.hits} misses={self.misses}>"

    @property
    def ready(self) -> int:
        return sum(sandbox.is_alive for sandbox in self._ready)

    async def take(self) -> Sandbox:
        """Return a sandbox, a ready one if there is one. Raises as `Backend.create`."""
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
        async with self._start_place():
            return await self._backend.create(self.name, self.profile)

    async def refill(self) -> None:
        """Keep the pool at its size, after those who wait have been served."""
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
                # Whoever asks next meets the same error and has somebody to tell; raised here, it would end the hub.
                logger.warning("the pool of profile %s cannot be refilled: %s", self.name, exc)

    def grow(self) -> None:
        """Ask for the pool to be filled, without waiting."""
        self._wanted.set()

    def close(self) -> None:
        """Make no more of them; those that are ready end with the backend."""
        self._closed = True
        self._wanted.set()
