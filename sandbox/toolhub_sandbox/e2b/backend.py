"""The backend `e2b`: creates sandboxes no faster than the service allows, and leaves none behind.

A creation runs in a task of the backend, not of its caller. A caller that is cancelled cannot take back a request that
the service already has, so the backend waits for that sandbox and kills it. The metadata of all sandboxes names this
backend: closing it looks for those whose answer never arrived.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from toolhub.config import E2BSettings, SandboxProfile, SandboxSettings
from toolhub_sandbox.e2b.lifecycle import Lease, Lifecycle
from toolhub_sandbox.e2b.sandbox import E2BSandbox
from toolhub_sandbox.e2b.sdk_adapter import KeyRefused, SdkAdapter, load_sdk
from toolhub_sandbox.errors import SandboxError, SandboxLimit, SandboxUnavailable
from toolhub_sandbox.model import Isolation

log = logging.getLogger("toolhub.sandbox.e2b")

METADATA_KEY = "toolhub_backend"
# For killing all sandboxes and for creations in progress. The service allows 20,000 requests in 30 s.
CLOSE_S = 10.0
# One list, and one kill for each sandbox, only when an answer was lost. CLOSE_S and this are less than a hub waits.
SWEEP_S = 4.0

_ISOLATION = Isolation(
    backend="e2b",
    summary="a virtual machine per sandbox, at E2B",
    limits="the E2B template",
    weaker=(
        "memory_bytes, processes, cpus, home_bytes and tmp_bytes of a profile: the template decides",
        "network.allow: hosts are told apart, their ports are not",
    ),
)


@dataclass(eq=False, slots=True)
class _PendingCreation:
    """A sandbox that is being created."""

    is_wanted: bool = True
    sandbox: E2BSandbox | None = None
    error: SandboxError | None = None
    done: anyio.Event = field(default_factory=anyio.Event)


class E2BBackend:
    """Made by `open_e2b`."""

    def __init__(self, settings: E2BSettings, adapter: SdkAdapter, tasks: anyio.abc.TaskGroup) -> None:
        self.creation_limiter = CreationLimiter(CreationRate(settings.creates_per_second))
        self._settings = settings
        self._adapter = adapter
        self._tasks = tasks
        self._backend_id = secrets.token_hex(12)
        self._sandboxes: set[E2BSandbox] = set()
        self._pending: set[_PendingCreation] = set()
        self._has_lost_answers = False
        self._is_closing = False

    def __repr__(self) -> str:
        counts = f"{len(self._sandboxes)} sandboxes, {len(self._pending)} being created"
        return f"<E2BBackend {counts}, {self.creation_limiter!r}>"

    @property
    def isolation(self) -> Isolation:
        return _ISOLATION

    @property
    def memory_bytes(self) -> None:
        """None: E2B's sandboxes use no memory of this machine."""
        return None

    async def create(self, name: str, profile: SandboxProfile) -> E2BSandbox:
        """Return a new sandbox, as soon as the rate limit allows.

        Raises SandboxLimit when the service refuses, with `retry_after` (the SDK has already retried after Retry-After,
        as far as a request's timeout allowed), SandboxUnavailable.
        """
        if profile.read_only:
            raise SandboxUnavailable(
                f"the profile {name!r} reads folders of this host, which E2B cannot see: {profile.read_only}"
            )
        started = await self.creation_limiter.acquire()
        if self._is_closing:
            raise SandboxUnavailable("the backend 'e2b' is closed")
        pending = _PendingCreation()
        self._pending.add(pending)
        self._tasks.start_soon(self._create_for, pending, name, profile, started)
        try:
            await pending.done.wait()
        except BaseException:
            pending.is_wanted = False
            if pending.sandbox is not None:  # it was created at the same moment
                self._tasks.start_soon(pending.sandbox.kill)
            raise
        if pending.sandbox is None:
            raise pending.error or SandboxUnavailable("the backend 'e2b' is closed")
        return pending.sandbox

    async def _create_for(self, pending: _PendingCreation, name: str, profile: SandboxProfile, started: float) -> None:
        try:
            sandbox = await self._make(pending, name, profile, started)
            if pending.is_wanted:
                pending.sandbox = sandbox
            else:
                await sandbox.kill()
        except SandboxError as exc:
            pending.error = exc
        finally:
            self._pending.discard(pending)
            pending.done.set()

    async def _make(self, pending: _PendingCreation, name: str, profile: SandboxProfile, started: float) -> E2BSandbox:
        sandbox = E2BSandbox(await self._request_sandbox(profile, started), name, profile)
        self._sandboxes.add(sandbox)
        self._tasks.start_soon(self._keep, sandbox)
        try:
            if pending.is_wanted:
                await sandbox.start()
        except BaseException as exc:
            await sandbox.kill()
            if isinstance(exc, SandboxError) and not isinstance(exc, SandboxLimit | SandboxUnavailable):
                raise SandboxUnavailable(f"a new sandbox of profile {name!r} does not work: {exc}") from exc
            raise
        return sandbox

    async def _request_sandbox(self, profile: SandboxProfile, started: float) -> Lifecycle:
        lease = Lease(self._settings.lease_s, anyio.current_time() + self._settings.lease_s)
        # The SDK repeats a request whose answer a gateway lost: the key makes that one sandbox.
        idempotency_key = secrets.token_hex(16)
        try:
            remote = await self._adapter.call(
                lambda: self._adapter.sdk.AsyncSandbox.create(
                    template=self._settings.template,
                    timeout=lease.whole_s,
                    metadata={METADATA_KEY: self._backend_id},
                    envs=dict(profile.env),
                    idempotency_key=idempotency_key,
                    **_network(profile),
                    **self._adapter.params,
                ),
                doing="creating a sandbox",
                otherwise=SandboxUnavailable,
            )
        except SandboxLimit as exc:
            self.creation_limiter.refused(started=started)
            exc.retry_after = self.creation_limiter.retry_after
            raise
        except KeyRefused:
            raise
        except BaseException:
            self._has_lost_answers = True
            raise
        self.creation_limiter.accepted()
        return Lifecycle(self._adapter, remote, lease)

    async def _keep(self, sandbox: E2BSandbox) -> None:
        await sandbox.lifecycle.renew_until_ended()
        self._sandboxes.discard(sandbox)

    async def aclose(self) -> None:
        """Kill all sandboxes, including those that are being created. Bounded in time."""
        self._is_closing = True
        for pending in self._pending:
            pending.is_wanted = False
        with anyio.move_on_after(CLOSE_S, shield=True):
            async with anyio.create_task_group() as killers:
                for sandbox in self._sandboxes:
                    killers.start_soon(sandbox.kill)
                for pending in self._pending:
                    killers.start_soon(pending.done.wait)
        if self._has_lost_answers or self._pending:
            with anyio.move_on_after(SWEEP_S, shield=True):
                await self._sweep()

    async def _sweep(self) -> None:
        """Kill sandboxes whose creation was never answered: their metadata names this backend."""
        sdk, params = self._adapter.sdk, self._adapter.params
        pages = sdk.AsyncSandbox.list(query=sdk.SandboxQuery(metadata={METADATA_KEY: self._backend_id}), **params)
        with suppress(SandboxError):
            while pages.has_next:
                for found in await self._adapter.call(pages.next_items, doing="looking for sandboxes left behind"):
                    await self._kill_stray(found.sandbox_id)
            return
        log.warning("sandboxes may be left at E2B; their leases end within %g s", self._settings.lease_s)

    async def _kill_stray(self, sandbox_id: str) -> None:
        sdk, params = self._adapter.sdk, self._adapter.params
        await self._adapter.call(lambda: sdk.AsyncSandbox.kill(sandbox_id, **params), doing="killing a sandbox")


def _network(profile: SandboxProfile) -> dict[str, Any]:
    if isinstance(profile.network, str):
        return {"allow_internet_access": profile.network == "host"}
    hosts = [host.partition(":")[0] for host in profile.network.allow]
    return {"network": {"allow_out": hosts, "deny_out": ["0.0.0.0/0"]}}


@asynccontextmanager
async def open_e2b(settings: SandboxSettings) -> AsyncIterator[E2BBackend]:
    """Give the backend; leaving it kills every sandbox it made, within seconds.

    Raises SandboxUnavailable if the SDK or the API key is missing. Needs asyncio: the SDK does.
    """
    adapter = SdkAdapter(load_sdk(), settings.e2b)
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        backend = E2BBackend(settings.e2b, adapter, tasks)
        try:
            yield backend
        except BaseException as exc:  # raised below: in here the task group would wrap it
            failure = exc
        await backend.aclose()
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


# --- how fast sandboxes may be created --------------------------------------------------------------------------------

# The service refuses with 429 (too fast, or too many) and 503 (no room). Each refusal halves the rate. Each creation
# that works adds a tenth of the configured rate. TCP does the same (AIMD), so hubs on one account share it fairly.
#
# One try a minute: slower would look dead, and a refusal costs the service little.
SLOWEST_PER_SECOND = 1 / 60


@dataclass(slots=True)
class CreationRate:
    """The AIMD rule, without waiting; `now` is seconds on any monotonic clock."""

    per_second: float
    """Never faster than this."""
    current: float = field(init=False)
    _next: float = -math.inf
    _refused_at: float = -math.inf

    def __post_init__(self) -> None:
        self.current = self.per_second

    def wait_s(self, now: float) -> float:
        """Seconds until the next creation may start; 0: now."""
        return max(0.0, self._next - now)

    def take(self, now: float) -> None:
        """A creation starts."""
        self._next = now + 1 / self.current

    def accept(self) -> None:
        """A creation worked."""
        self.current = min(self.per_second, self.current + self.per_second / 10)

    def refuse(self, now: float, *, started: float, retry_after: float | None = None) -> None:
        """A creation that began at `started` was refused.

        Requests that had started before the rate was lowered do not lower it again.
        """
        if started >= self._refused_at:
            self.current = max(min(self.per_second, SLOWEST_PER_SECOND), self.current / 2)
            self._refused_at = now
        self._next = max(self._next, now + max(1 / self.current, retry_after or 0.0))


class CreationLimiter:
    """Makes creations wait until `CreationRate` allows them, first come, first served."""

    def __init__(self, rate: CreationRate) -> None:
        self.rate = rate
        self._turn = anyio.Lock()

    def __repr__(self) -> str:
        return f"<CreationLimiter {self.rate.current:g}/s of {self.rate.per_second:g}/s>"

    @property
    def retry_after(self) -> float:
        """Seconds after which another try makes sense."""
        return self.rate.wait_s(anyio.current_time())

    async def acquire(self) -> float:
        """Wait until a creation may start, and return that time."""
        async with self._turn:
            # In a loop: a refusal that arrives during the wait makes it longer.
            while (wait := self.rate.wait_s(anyio.current_time())) > 0:
                await anyio.sleep(wait)
            now = anyio.current_time()
            self.rate.take(now)
            return now

    def accepted(self) -> None:
        self.rate.accept()

    def refused(self, *, started: float, retry_after: float | None = None) -> None:
        self.rate.refuse(anyio.current_time(), started=started, retry_after=retry_after)
