"""All sandboxes of a hub: limits, warm pools, and who owns which."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import anyio.abc

from toolhub.config import SandboxProfile, SandboxSettings
from toolhub_sandbox.errors import SandboxLimit, SandboxLost, SandboxNotFound, SandboxUnavailable
from toolhub_sandbox.model import Isolation
from toolhub_sandbox.protocol import Backend, Sandbox

StartPlace = Callable[[], AbstractAsyncContextManager[object]]


class Sandboxes:
    """What a hub lends: `scope(owner)` for each task."""

    def __init__(self, settings: SandboxSettings, backend: Backend) -> None:
        self.settings = settings
        self._backend = backend

    @property
    def isolation(self) -> Isolation:
        return self._backend.isolation

    def scope(self, owner: str) -> SandboxScope:
        """The sandboxes of one owner (a task, or a server that runs alone); close it when the owner ends."""
        return SandboxScope(owner, self)


class SandboxScope:
    """One owner's sandboxes. They end with it."""

    def __init__(self, owner: str, sandboxes: Sandboxes) -> None:
        self.owner = owner
        self._sandboxes = sandboxes
        self._own: dict[str, Sandbox] = {}

    async def create(self, profile: str | None = None) -> Sandbox:
        """Return a new sandbox, from the pool where one is ready.

        profile: a name from the config; None: the default. Raises SandboxLimit, SandboxUnavailable.
        """
        raise NotImplementedError

    def get(self, sandbox_id: str) -> Sandbox:
        """Return a live sandbox of this owner. Raises SandboxNotFound."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Kill all of them and wait until they are gone. Idempotent; nothing can be created afterwards."""
        raise NotImplementedError


@asynccontextmanager
async def open_sandboxes(
    settings: SandboxSettings | None = None, *, start_place: StartPlace | None = None
) -> AsyncIterator[Sandboxes]:
    """Give sandboxes as `settings` say; leaving ends all of them. The backend starts with the first sandbox.

    start_place: a context manager factory that bounds how many processes are starting at once.
    """
    raise NotImplementedError
    yield
