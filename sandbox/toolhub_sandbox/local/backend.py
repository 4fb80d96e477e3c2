"""Sandboxes from zygotes: one zygote per profile, started with the profile's first sandbox."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from toolhub.config import AllowedHosts, SandboxProfile, SandboxSettings
from toolhub.owned import Held, hold
from toolhub_sandbox.errors import SandboxLost, SandboxUnavailable
from toolhub_sandbox.inside import seccomp
from toolhub_sandbox.inside.agent import Options
from toolhub_sandbox.inside.frames import BadFrame
from toolhub_sandbox.inside.zygote import Settings
from toolhub_sandbox.local.box import LocalSandbox, max_answer
from toolhub_sandbox.local.cgroups import Cgroups, SandboxCgroup, open_cgroups
from toolhub_sandbox.local.line import Line
from toolhub_sandbox.local.nursery import Nursery, folders_of, open_nursery
from toolhub_sandbox.model import Isolation

# For a hub that runs as root and names no `user`: an id that distributions leave unused (systemd's "Users, Groups,
# UIDs and GIDs": 60578-61183) and that fits the 65,536 ids of a container.
UNUSED_UID = 60987
PROXY_PORT = 3128
# A fork, a few mounts; on a machine under load, with 60 others starting, a second or two.
_BIRTH_S = 30.0


@dataclass(eq=False)
class Family:
    """The zygote of one profile."""

    profile: SandboxProfile
    start: anyio.Lock = field(default_factory=anyio.Lock)
    held: Held[Nursery] | None = None


class LocalBackend:
    """See the module's text. `owners` is the task group that zygotes and sandboxes live in."""

    def __init__(
        self, settings: SandboxSettings, owners: anyio.abc.TaskGroup, cgroups: Cgroups | None, why_cgroups: str
    ) -> None:
        self._settings = settings
        self._owners = owners
        self._cgroups = cgroups
        self._why_cgroups = why_cgroups
        self._python = settings.python or sys.executable
        self._is_isolated = settings.backend == "local"
        self._families: dict[str, Family] = {}
        self._folders: list[str] | None = None

    @property
    def isolation(self) -> Isolation:
        limits = f"cgroup v{self._cgroups.version}" if self._cgroups else "rlimits and a watch on memory"
        weaker = []
        if not self._cgroups:
            weaker.append(f"no cgroup ({self._why_cgroups}): memory is checked a few times a second, cpus not at all")
        if not self._is_isolated:
            weaker.append("no isolation: programs inside can do what the hub's user can")
            return Isolation("subprocess", "none: limits only", limits, tuple(weaker), is_secure=False)
        summary = "user, mount, pid, net, ipc, uts and cgroup namespaces; own root; no capabilities"
        if seccomp.is_supported():
            summary += "; seccomp"
        else:
            weaker.append("no seccomp filter: the system call numbers of this machine are not known")
        return Isolation("local", summary, limits, tuple(weaker))

    @property
    def memory_bytes(self) -> int:
        """What all sandboxes use."""
        if self._cgroups is not None:
            return self._cgroups.memory_bytes
        return sum(family.held.value.memory_bytes for family in self._families.values() if family.held)

    # --- making -----------------------------------------------------------------------------------------------------

    async def create(self, name: str, profile: SandboxProfile) -> LocalSandbox:
        nursery = await self._nursery(name, profile)
        sandbox_id = f"sbx{secrets.token_hex(10)}"
        held = await hold(self._owners, self._born(sandbox_id, name, profile, nursery), until=LocalSandbox.watch)
        return held.value

    @asynccontextmanager
    async def _born(
        self, sandbox_id: str, name: str, profile: SandboxProfile, nursery: Nursery
    ) -> AsyncIterator[LocalSandbox]:
        """A sandbox while it lives, with all that it needs outside."""
        async with AsyncExitStack() as stack:
            home = await self._own_folder(stack)
            options = self._options(sandbox_id, profile, home)
            group = self._cgroups.create(sandbox_id, profile) if self._cgroups else None
            if group is not None:
                stack.callback(group.remove)
            line = Line(await nursery.spawn(options), max_body=max_answer(profile))
            stack.callback(line.end, "it was closed")
            pidfd, listener = await _meet(line, group)
            try:
                await line.say(b"g")
                if listener >= 0:
                    await self._serve_proxy(stack, listener, profile.network)
            except BaseException:
                os.close(pidfd)
                raise
            sandbox = LocalSandbox(
                sandbox_id,
                name,
                profile,
                line=line,
                pidfd=pidfd,
                backend=self._settings.backend,
                isolation=self.isolation.summary,
                was_out_of_memory=_Memory(group, nursery, sandbox_id).was_exceeded,
            )
            yield sandbox
            await sandbox.kill()

    def _options(self, sandbox_id: str, profile: SandboxProfile, home: str) -> Options:
        network = profile.network
        return Options(
            id=sandbox_id,
            output_bytes=profile.output_bytes,
            env=dict(profile.env),
            network=network if isinstance(network, str) else "proxy",
            # Without a cgroup: no process alone may have more; the watch looks after their sum.
            memory_bytes=None if self._cgroups else profile.memory_bytes,
            processes=profile.processes,
            home_bytes=profile.home_bytes,
            tmp_bytes=profile.tmp_bytes,
            proxy_port=PROXY_PORT if isinstance(network, AllowedHosts) else 0,
            home=home,
        )

    async def _own_folder(self, stack: AsyncExitStack) -> str:
        """What stands for /home/user: a file system of its own inside, else a temporary folder."""
        if self._is_isolated:
            return "/home/user"
        folder = await anyio.to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="toolhub-sandbox-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    async def _serve_proxy(self, stack: AsyncExitStack, listener: int, network: Any) -> None:
        raise NotImplementedError

    # --- zygotes ----------------------------------------------------------------------------------------------------

    async def _nursery(self, name: str, profile: SandboxProfile) -> Nursery:
        family = self._families.setdefault(name, Family(profile))
        async with family.start:
            if family.held is None or family.held.value.has_ended:
                family.held = await hold(self._owners, self._open(profile), until=Nursery.listen, name=f"zygote {name}")
        return family.held.value

    @asynccontextmanager
    async def _open(self, profile: SandboxProfile) -> AsyncIterator[Nursery]:
        if self._folders is None:
            self._folders = await anyio.to_thread.run_sync(folders_of, self._python)
        uid, gid = account(self._settings.user)
        settings = Settings(
            isolation="namespaces" if self._is_isolated else "none",
            preload=list(profile.preload),
            folders=[*self._folders, *profile.read_only],
            uid=uid,
            gid=gid,
            host_network=profile.network == "host",
            memory_bytes=None if self._cgroups else profile.memory_bytes,
            cgroups=self._cgroups.paths if self._cgroups else None,
        )
        async with open_nursery(self._python, settings) as nursery:
            yield nursery


class _Memory:
    """Whether a sandbox's process was killed for its memory, said once per kill."""

    def __init__(self, group: SandboxCgroup | None, nursery: Nursery, sandbox_id: str) -> None:
        self._group = group
        self._told = 0
        self._killed = 0
        self._sandbox_id = sandbox_id
        if group is None:
            nursery.listeners.append(self._on_memory)

    def _on_memory(self, sandbox_id: str) -> None:
        self._killed += sandbox_id == self._sandbox_id

    def was_exceeded(self) -> bool:
        kills = self._killed if self._group is None else self._group.out_of_memory_kills
        before, self._told = self._told, kills
        return kills > before


async def _meet(line: Line, group: SandboxCgroup | None) -> tuple[int, int]:
    """Wait until the sandbox exists; put it into its group. Returns its pidfd, and the proxy's socket or -1."""
    try:
        with anyio.fail_after(_BIRTH_S):
            head, descriptors = await line.meet()
    except (TimeoutError, OSError, BadFrame, SandboxLost) as exc:
        raise SandboxUnavailable(f"a sandbox could not be made: {exc or 'it took too long'}") from exc
    if head.get("event") != "born" or not descriptors:
        raise SandboxUnavailable(f"a sandbox could not be made: {head.get('why')}")
    pidfd, listener = (*descriptors, -1)[:2]
    try:
        if group is not None:
            group.adopt(pid_of(pidfd))
    except OSError as exc:
        for descriptor in descriptors:
            os.close(descriptor)
        raise SandboxUnavailable(f"a sandbox could not be put into its cgroup: {exc}") from exc
    return pidfd, listener


def pid_of(pidfd: int) -> int:
    """Return the pid of a process as this process's namespace numbers it."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    raise ProcessLookupError(f"descriptor {pidfd} is no pidfd")


def account(user: str | None) -> tuple[int, int]:
    """Return uid and gid that sandboxes run as; the hub's own unless it is root. Raises SandboxUnavailable."""
    if os.geteuid() != 0:
        return os.getuid(), os.getgid()
    if user is None:
        return UNUSED_UID, UNUSED_UID
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        if user.isdigit() and user != "0":
            return int(user), int(user)
        raise SandboxUnavailable(f"sandbox.user: there is no account {user!r}") from None
    if entry.pw_uid == 0:
        raise SandboxUnavailable("sandbox.user: sandboxes must not run as root")
    return entry.pw_uid, entry.pw_gid


@asynccontextmanager
async def open_local(settings: SandboxSettings) -> AsyncIterator[LocalBackend]:
    """Give the `local` backend, or `subprocess` if the settings ask for it. Leaving ends every sandbox."""
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"the {settings.backend} backend needs Linux; e2b works everywhere")
    with open_cgroups() as (cgroups, why):
        async with anyio.create_task_group() as owners:
            try:
                yield LocalBackend(settings, owners, cgroups, why)
            finally:
                owners.cancel_scope.cancel()
