"""The backend: creates sandboxes no faster than the service allows, and leaves none behind.

A creation runs in a task of the backend, not of its caller: a caller that is cancelled half-way cannot take back a
request that is already at the service, so the sandbox is awaited and killed. All carry a mark of this backend in
their metadata; leaving it looks for those whose answer never arrived.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from toolhub.config import E2BSettings, SandboxProfile, SandboxSettings
from toolhub_sandbox.e2b.border import Border, KeyRefused, load_sdk
from toolhub_sandbox.e2b.life import Lease, Life
from toolhub_sandbox.e2b.rate import CreatePace, CreateRate
from toolhub_sandbox.e2b.sandbox import E2BSandbox
from toolhub_sandbox.errors import SandboxError, SandboxLimit, SandboxUnavailable
from toolhub_sandbox.model import Isolation

log = logging.getLogger("toolhub.sandbox.e2b")

MARK = "toolhub_backend"
# Killing all sandboxes at once, and creations that are on their way: 20,000 requests in 30 s are allowed.
LEAVE_S = 10.0
# One list and one kill each, and only when an answer was lost. Together less than a hub waits for its sandboxes.
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
class _Birth:
    """A sandbox on its way."""

    is_wanted: bool = True
    sandbox: E2BSandbox | None = None
    error: SandboxError | None = None
    arrived: anyio.Event = field(default_factory=anyio.Event)


class E2BBackend:
    """Made by `open_e2b`."""

    def __init__(self, settings: E2BSettings, border: Border, tasks: anyio.abc.TaskGroup) -> None:
        self.pace = CreatePace(CreateRate(settings.creates_per_second))
        self._settings = settings
        self._border = border
        self._tasks = tasks
        self._mark = secrets.token_hex(12)
        self._sandboxes: set[E2BSandbox] = set()
        self._births: set[_Birth] = set()
        self._has_lost_answers = False
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<E2BBackend {len(self._sandboxes)} sandboxes, {len(self._births)} being created, {self.pace!r}>"

    @property
    def isolation(self) -> Isolation:
        return _ISOLATION

    @property
    def memory_bytes(self) -> None:
        """None of this machine's."""
        return None

    async def create(self, name: str, profile: SandboxProfile) -> E2BSandbox:
        """Return a new sandbox, after waiting for a turn.

        Raises SandboxLimit when the service refuses (`retry_after`: when a next try makes sense; the SDK has already
        waited for what its Retry-After asked, as far as a request's time allows), SandboxUnavailable.
        """
        if profile.read_only:
            raise SandboxUnavailable(
                f"the profile {name!r} reads folders of this host, which E2B cannot see: {profile.read_only}"
            )
        started = await self.pace.wait_turn()
        if self._is_closing:
            raise SandboxUnavailable("the backend 'e2b' is closed")
        birth = _Birth()
        self._births.add(birth)
        self._tasks.start_soon(self._bear, birth, name, profile, started)
        try:
            await birth.arrived.wait()
        except BaseException:
            birth.is_wanted = False
            if birth.sandbox is not None:  # it arrived at the very moment
                self._tasks.start_soon(birth.sandbox.kill)
            raise
        if birth.sandbox is None:
            raise birth.error or SandboxUnavailable("the backend 'e2b' is closed")
        return birth.sandbox

    async def _bear(self, birth: _Birth, name: str, profile: SandboxProfile, started: float) -> None:
        try:
            sandbox = await self._make(birth, name, profile, started)
            if birth.is_wanted:
                birth.sandbox = sandbox
            else:
                await sandbox.kill()
        except SandboxError as exc:
            birth.error = exc
        finally:
            self._births.discard(birth)
            birth.arrived.set()

    async def _make(self, birth: _Birth, name: str, profile: SandboxProfile, started: float) -> E2BSandbox:
        sandbox = E2BSandbox(await self._ask_for_one(profile, started), name, profile)
        self._sandboxes.add(sandbox)
        self._tasks.start_soon(self._keep, sandbox)
        try:
            if birth.is_wanted:
                await sandbox.start()
        except BaseException as exc:
            await sandbox.kill()
            if isinstance(exc, SandboxError) and not isinstance(exc, SandboxLimit | SandboxUnavailable):
                raise SandboxUnavailable(f"a new sandbox of profile {name!r} did not work: {exc}") from exc
            raise
        return sandbox

    async def _ask_for_one(self, profile: SandboxProfile, started: float) -> Life:
        lease = Lease(self._settings.lease_s, anyio.current_time() + self._settings.lease_s)
        # The SDK repeats a request whose answer a gateway lost: the key makes that one sandbox.
        idempotency_key = secrets.token_hex(16)
        try:
            box = await self._border.call(
                lambda: self._border.sdk.AsyncSandbox.create(
                    template=self._settings.template,
                    timeout=lease.whole_s,
                    metadata={MARK: self._mark},
                    envs=dict(profile.env),
                    idempotency_key=idempotency_key,
                    **_network(profile),
                    **self._border.params,
                ),
                doing="creating a sandbox",
                otherwise=SandboxUnavailable,
            )
        except SandboxLimit as exc:
            self.pace.refused(started=started)
            exc.retry_after = self.pace.retry_after
            raise
        except KeyRefused:
            raise
        except BaseException:
            self._has_lost_answers = True
            raise
        self.pace.accepted()
        return Life(self._border, box, lease)

    async def _keep(self, sandbox: E2BSandbox) -> None:
        await sandbox.life.keep()
        self._sandboxes.discard(sandbox)

    async def leave(self) -> None:
        """Kill all sandboxes, also those on their way. Bounded."""
        self._is_closing = True
        for birth in self._births:
            birth.is_wanted = False
        with anyio.move_on_after(LEAVE_S, shield=True):
            async with anyio.create_task_group() as killers:
                for sandbox in self._sandboxes:
                    killers.start_soon(sandbox.kill)
                for birth in self._births:
                    killers.start_soon(birth.arrived.wait)
        if self._has_lost_answers or self._births:
            with anyio.move_on_after(SWEEP_S, shield=True):
                await self._sweep()

    async def _sweep(self) -> None:
        """Kill what carries our mark: sandboxes whose creation was never answered."""
        sdk, params = self._border.sdk, self._border.params
        pages = sdk.AsyncSandbox.list(query=sdk.SandboxQuery(metadata={MARK: self._mark}), **params)
        with suppress(SandboxError):
            while pages.has_next:
                for found in await self._border.call(pages.next_items, doing="looking for sandboxes left behind"):
                    await self._kill_stray(found.sandbox_id)
            return
        log.warning("sandboxes may be left at E2B; their leases end within %g s", self._settings.lease_s)

    async def _kill_stray(self, sandbox_id: str) -> None:
        sdk, params = self._border.sdk, self._border.params
        await self._border.call(lambda: sdk.AsyncSandbox.kill(sandbox_id, **params), doing="killing a sandbox")


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
    border = Border(load_sdk(), settings.e2b)
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        backend = E2BBackend(settings.e2b, border, tasks)
        try:
            yield backend
        except BaseException as exc:  # raised below: in here the task group would wrap it
            failure = exc
        await backend.leave()
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
