"""Whether a sandbox at E2B is alive: its lease, and the calls in progress that end with it."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from toolhub.limits.backoff import Backoff
from toolhub_sandbox.e2b.sdk_adapter import SdkAdapter
from toolhub_sandbox.errors import SandboxError, SandboxLost

T = TypeVar("T")
log = logging.getLogger("toolhub.sandbox.e2b")

# One request and two retries. If they fail, the lease ends the sandbox.
KILL_S = 10.0
KILL_TRIES = 3


@dataclass(slots=True)
class Lease:
    """Until when the service keeps a sandbox; `now` is seconds on any monotonic clock."""

    seconds: float
    ends_at: float

    @property
    def whole_s(self) -> int:
        """The service counts whole seconds."""
        return max(1, math.ceil(self.seconds))

    def renewed(self, now: float) -> None:
        self.ends_at = now + self.seconds

    def next_renewal(self, *, rng: random.Random | None = None) -> float:
        """Return when to renew: after 40 to 50 % of the lease, at random, with time left for several tries."""
        return self.ends_at - self.seconds * (0.5 + 0.1 * (rng or random).random())


class Lifecycle:
    """The life of one sandbox: alive until `mark_lost()` or `kill()`."""

    def __init__(self, adapter: SdkAdapter, remote: Any, lease: Lease) -> None:
        self.adapter = adapter
        self.remote = remote
        self.lease = lease
        self.end_reason: str | None = None
        """Why the sandbox has ended; None while it is alive."""
        self._was_killed = False
        self._closed = anyio.Event()
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def is_alive(self) -> bool:
        return self.end_reason is None

    def check(self) -> None:
        if self.end_reason is not None:
            raise SandboxLost(self.end_reason)

    async def call(
        self,
        send: Callable[[], Awaitable[T]],
        *,
        doing: str,
        timeout: float | None = None,
        passing: tuple[type[Exception], ...] = (),
    ) -> T:
        """As `SdkAdapter.call`, for something inside this sandbox; if the sandbox is gone, `mark_lost()`."""
        self.check()
        try:
            return await self.adapter.call(
                send, doing=doing, timeout=timeout, is_running=self.remote.is_running, passing=passing
            )
        except SandboxLost as exc:
            self.mark_lost(str(exc))
            raise
        except SandboxError as exc:
            if self.end_reason is not None:  # it ended meanwhile, which is why the call failed
                raise SandboxLost(self.end_reason) from exc
            raise

    @contextmanager
    def while_alive(self) -> Iterator[None]:
        """Cancel the block when the sandbox ends, and raise SandboxLost."""
        self.check()
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise SandboxLost(self.end_reason or "the sandbox is gone")

    def mark_lost(self, reason: str) -> None:
        """End this lifecycle: the sandbox was found to be gone."""
        if self._finish(reason):
            self._closed.set()

    async def kill(self) -> None:
        """Ask the service to end the sandbox. Returns when it has, or when all tries failed. Idempotent."""
        if not self._finish("the sandbox was killed"):
            await self._closed.wait()
            return
        self._was_killed = True
        try:
            with anyio.move_on_after(KILL_S, shield=True):
                await self._send_kill(KILL_TRIES)
        finally:
            self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def renew_until_ended(self) -> None:
        """Renew the lease until the sandbox ends."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await self._renew_forever()
            finally:
                self._scopes.discard(scope)
        await self._closed.wait()
        if not self._was_killed:  # it was only found to be gone: if that is wrong, this ends it
            await self._send_kill(tries=1)

    async def _renew_forever(self) -> None:
        failures = 0
        retry = Backoff(initial=self.lease.seconds / 50, maximum=self.lease.seconds / 10)
        while self.is_alive:
            now = anyio.current_time()
            wait = retry.delay(failures) if failures else self.lease.next_renewal() - now
            await anyio.sleep(max(0.0, wait))
            try:
                await self._renew()
                failures = 0
            except SandboxError as exc:
                failures += 1
                if anyio.current_time() >= self.lease.ends_at:
                    self.mark_lost(f"the lease of the sandbox ended and could not be renewed: {exc}")

    async def _renew(self) -> None:
        asked = anyio.current_time()
        # A third of the lease: one slow answer must leave time for other tries.
        await self.call(
            lambda: self.remote.set_timeout(self.lease.whole_s),
            doing="renewing the lease",
            timeout=min(self.adapter.timeout_s, max(1.0, self.lease.seconds / 3)),
        )
        self.lease.renewed(asked)

    def _finish(self, reason: str) -> bool:
        if self.end_reason is not None:
            return False
        self.end_reason = reason
        for scope in self._scopes:
            scope.cancel()
        return True

    async def _send_kill(self, tries: int) -> None:
        for _ in range(tries):
            with suppress(SandboxError):
                await self.adapter.call(self.remote.kill, doing="killing a sandbox", timeout=KILL_S / tries)
                return
        log.warning(
            "sandbox %s could not be killed; its lease ends it within %g s", self.remote.sandbox_id, self.lease.seconds
        )
