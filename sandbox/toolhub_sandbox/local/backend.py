"""The backends `local` and `subprocess`: sandboxes forked from zygotes.

There is one zygote per profile. It starts with the profile's first sandbox, and a new one replaces it if it dies.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.abc

from toolhub.config import AllowedHosts, SandboxProfile, SandboxSettings
from toolhub.owned import Held, hold
from toolhub_sandbox.errors import SandboxLost, SandboxUnavailable
from toolhub_sandbox.inside import seccomp
from toolhub_sandbox.inside.agent import SHM_BYTES, SandboxOptions
from toolhub_sandbox.inside.isolation import MAX_FILES
from toolhub_sandbox.inside.zygote import ZygoteSettings
from toolhub_sandbox.local.agent_connection import AgentConnection
from toolhub_sandbox.local.cgroups import Cgroups, MemoryKills, open_cgroups
from toolhub_sandbox.local.fork_server import ForkServer, interpreter_folders, open_fork_server
from toolhub_sandbox.local.sandbox import LocalSandbox, max_response_bytes
from toolhub_sandbox.local.uids import account, uid_pool
from toolhub_sandbox.model import Isolation
from toolhub_sandbox.protocol import HOME

PROXY_PORT = 3128
NOT_COUNTED = (
    "without a cgroup nothing bounds pipes (64 KiB each, 256 files for each process), shared memory that a process has "
    "unmapped in part, and sockets where the network is the host's; start the hub in a group of its own, for example "
    "with `systemd-run --user --scope -p Delegate=yes toolhub serve ...`"
)
SHARED_UID = (
    "sandboxes share a uid: epoll is switched off in them (Python uses poll; Node.js, Go and Tokio need epoll), and "
    "they share what the kernel allows a uid of pipe memory and of files in flight; a hub that is root gives each its "
    "own, unless sandbox.user is set"
)
# Open files of one process where no cgroup counts what the kernel keeps for each.
MAX_FILES_UNCOUNTED = 256
# A fork and a few mounts take milliseconds; a second or two while 60 others start on a busy machine.
_SPAWN_S = 30.0
# Characters kept of the reason that a sandbox gives for not starting.
_MAX_REASON = 1000


class Spawner(Protocol):
    """Starts sandboxes. `listeners` are called with the id of a sandbox that lost a process to its memory limit."""

    listeners: list[Callable[[str], None]]

    async def spawn(self, options: SandboxOptions) -> socket.socket: ...

    def stderr_tail(self) -> str: ...


@dataclass(eq=False)
class ForkServerHandle:
    """The fork server of one profile: none before the first sandbox."""

    profile: SandboxProfile
    start: anyio.Lock = field(default_factory=anyio.Lock)
    held: Held[ForkServer] | None = None


class LocalBackend:
    """Makes sandboxes. `owners` is the task group in which zygotes and sandboxes run."""

    def __init__(
        self, settings: SandboxSettings, owners: anyio.abc.TaskGroup, cgroups: Cgroups | None, why_cgroups: str
    ) -> None:
        self._settings = settings
        self._owners = owners
        self._cgroups = cgroups
        self._why_cgroups = why_cgroups
        self._python = settings.python or sys.executable
        self._is_isolated = settings.backend != "subprocess"
        self.uids = uid_pool(settings) if self._is_isolated else None
        """None: sandboxes share the hub's uid, or that of `sandbox.user`."""
        self._fork_servers: dict[str, ForkServerHandle] = {}
        self._folders: list[str] | None = None

    @property
    def isolation(self) -> Isolation:
        limits = f"cgroup v{self._cgroups.version}" if self._cgroups else "rlimits and a watch on memory"
        weaker = []
        if not self._cgroups:
            weaker.append(f"no cgroup ({self._why_cgroups}): memory is checked a few times a second, cpus not at all")
            weaker.append(NOT_COUNTED)
        elif not self._cgroups.has_cpu:
            weaker.append("no cpu controller among the cgroups: `cpus` has no effect")
        if not self._is_isolated:
            weaker.append("no isolation: programs inside can do what the hub's user can")
            if not self._cgroups:
                weaker.append("no cgroup: processes are counted with all others of the account, files not at all")
            return Isolation("subprocess", "none: limits only", limits, tuple(weaker), is_secure=False)
        if self.uids is None:
            weaker.append(SHARED_UID)
        summary = "user, mount, pid, net, ipc, uts and cgroup namespaces; own root; no capabilities"
        if seccomp.is_supported():
            summary += "; seccomp"
        else:
            weaker.append("no seccomp filter: the system call numbers of this machine are not known")
        return Isolation("local", summary, limits, tuple(weaker))

    @property
    def memory_bytes(self) -> int | None:
        """Memory of all sandboxes together."""
        if self._cgroups is not None:
            return self._cgroups.memory_bytes
        return sum(handle.held.value.memory_bytes for handle in self._fork_servers.values() if handle.held)

    # --- starting ------------------------------------------------------------------------------------------------

    async def create(self, name: str, profile: SandboxProfile) -> LocalSandbox:
        try:
            held = await hold(
                self._owners, self._open_sandbox(name, profile), until=LocalSandbox.listen, name="sandbox"
            )
        except OSError as exc:
            raise SandboxUnavailable(f"a sandbox could not be started: {exc}") from exc
        return held.value

    @asynccontextmanager
    async def _open_sandbox(self, name: str, profile: SandboxProfile) -> AsyncIterator[LocalSandbox]:
        """Give a running sandbox. Leaving ends it, and frees all that the hub holds for it."""
        sandbox: LocalSandbox | None = None
        try:
            async with AsyncExitStack() as stack:
                sandbox = await self._spawn(stack, name, profile)
                try:
                    yield sandbox
                finally:
                    with anyio.CancelScope(shield=True):
                        await sandbox.end()
        finally:
            if sandbox is not None:
                sandbox.set_gone()

    async def _spawn(self, stack: AsyncExitStack, name: str, profile: SandboxProfile) -> LocalSandbox:
        uid = await self._lend_uid(name, profile, stack)
        options = self._options(profile, await self._home_folder(stack), uid)
        group = self._cgroups.create(options.id, profile) if self._cgroups else None
        if group is not None:
            stack.push_async_callback(_in_thread, group.remove)
        spawner = await self._spawner(name, profile, uid, stack)
        connection = AgentConnection(await spawner.spawn(options), max_body=max_response_bytes(profile))
        stack.callback(connection.close, "it was closed")
        try:
            pidfd, listener = await _handshake(connection)
        except SandboxUnavailable as exc:
            raise SandboxUnavailable(f"a sandbox could not be started: {spawner.stderr_tail() or exc}") from exc
        stack.callback(os.close, pidfd)
        if listener is not None:
            await self._serve_proxy(stack, listener, name, profile)
        try:
            with group.cgroup_fds() if group else nullcontext(()) as cgroup_fds:
                connection.start(cgroup_fds)
        except (OSError, SandboxLost) as exc:
            raise SandboxUnavailable(f"a sandbox ended during its start, or could not enter its cgroup: {exc}") from exc
        memory = MemoryKills(options.id, group)
        spawner.listeners.append(memory.note)
        stack.callback(spawner.listeners.remove, memory.note)
        return LocalSandbox(
            options.id,
            name,
            profile,
            connection=connection,
            pidfd=pidfd,
            backend=self._settings.backend,
            isolation=self.isolation.summary,
            was_out_of_memory=memory.is_new,
        )

    async def _lend_uid(self, name: str, profile: SandboxProfile, stack: AsyncExitStack) -> int | None:
        """Lend a uid until `stack` ends; None where sandboxes share one. Raises SandboxLimit."""
        if self.uids is None or not await self._can_change_uid(name, profile):
            return None
        uid = self.uids.take()
        stack.callback(self.uids.give_back, uid)
        return uid

    async def _can_change_uid(self, name: str, profile: SandboxProfile) -> bool:
        return (await self._fork_server(name, profile)).has_uids

    def _options(self, profile: SandboxProfile, home: str, uid: int | None) -> SandboxOptions:
        network = profile.network
        # Without a cgroup only the watch counts files in memory. With a fixed share for each file system, files alone
        # cannot fill the limit.
        most = (
            [1 << 62] * 3 if self._cgroups or not self._is_isolated else [profile.memory_bytes // n for n in (2, 4, 8)]
        )
        return SandboxOptions(
            id=f"sbx{secrets.token_hex(10)}",
            output_bytes=profile.output_bytes,
            env=dict(profile.env),
            network=network if isinstance(network, str) else "proxy",
            # Without a cgroup: the limit of each process; the watch limits their sum.
            memory_bytes=None if self._cgroups else profile.memory_bytes,
            # Counted per user namespace; without one, together with all other processes of the uid.
            processes=profile.processes if self._is_isolated or not self._cgroups else None,
            home_bytes=min(profile.home_bytes, most[0]),
            tmp_bytes=min(profile.tmp_bytes, most[1]),
            shm_bytes=min(SHM_BYTES, most[2]),
            files=MAX_FILES if self._cgroups else MAX_FILES_UNCOUNTED,
            proxy_port=PROXY_PORT if isinstance(network, AllowedHosts) else 0,
            home=home,
            uid=uid,
        )

    async def _home_folder(self, stack: AsyncExitStack) -> str:
        """Return the home folder: /home/user in a file system of its own, or without isolation a temporary folder."""
        if self._is_isolated:
            return HOME
        folder = await anyio.to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="toolhub-sandbox-"))
        stack.push_async_callback(_in_thread, lambda: shutil.rmtree(folder, ignore_errors=True))
        if os.geteuid() == 0:
            os.chown(folder, *account(self._settings.user))
        return folder

    async def _serve_proxy(
        self, stack: AsyncExitStack, listener: socket.socket, name: str, profile: SandboxProfile
    ) -> None:
        from toolhub_sandbox.proxy.rules import AllowRules
        from toolhub_sandbox.proxy.server import run_proxy

        assert isinstance(profile.network, AllowedHosts)
        rules = AllowRules.of(profile.network.allow, profile=name)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(run_proxy, listener, rules)

    async def _spawner(self, name: str, profile: SandboxProfile, uid: int | None, stack: AsyncExitStack) -> Spawner:
        """Return what starts the sandbox. `stack` ends with the sandbox."""
        return await self._fork_server(name, profile)

    # --- zygotes ----------------------------------------------------------------------------------------------------

    async def _fork_server(self, name: str, profile: SandboxProfile) -> ForkServer:
        handle = self._fork_servers.setdefault(name, ForkServerHandle(profile))
        async with handle.start:
            if handle.held is None or handle.held.value.has_ended:
                handle.held = await hold(
                    self._owners, self._open_fork_server(profile), until=ForkServer.listen, name=f"zygote {name}"
                )
        return handle.held.value

    @asynccontextmanager
    async def _open_fork_server(self, profile: SandboxProfile) -> AsyncIterator[ForkServer]:
        if self._folders is None:
            self._folders = await anyio.to_thread.run_sync(interpreter_folders, self._python)
        uid, gid = account(self._settings.user)
        settings = ZygoteSettings(
            isolation="namespaces" if self._is_isolated else "none",
            preload=list(profile.preload),
            folders=[*self._folders, *profile.read_only],
            uid=uid,
            gid=gid,
            host_network=profile.network == "host",
            memory_bytes=None if self._cgroups else profile.memory_bytes,
            processes=None if self._cgroups or self._is_isolated else profile.processes,
            cgroups=self._cgroups.paths if self._cgroups else None,
            own_uids=self._settings.uid_range if self.uids is not None else None,
        )
        async with open_fork_server(self._python, settings) as fork_server:
            yield fork_server


async def _in_thread(clean_up: Callable[[], None]) -> None:
    """Clean up in a thread: ending the processes of a cgroup and removing many files takes a while."""
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(clean_up)


async def _handshake(connection: AgentConnection) -> tuple[int, socket.socket | None]:
    """Wait until the sandbox has started. Returns its pidfd, and the listening socket for the proxy if it has one."""
    try:
        with anyio.fail_after(_SPAWN_S):
            head, descriptors = await connection.handshake()
    except (TimeoutError, OSError, SandboxLost) as exc:
        raise SandboxUnavailable(str(exc) or f"it did not start within {_SPAWN_S:g} s") from exc
    if head.get("event") != "spawned" or not descriptors:
        for descriptor in descriptors:
            os.close(descriptor)
        why = head.get("why")
        raise SandboxUnavailable(why[:_MAX_REASON] if isinstance(why, str) else "its first message breaks the protocol")
    return descriptors[0], socket.socket(fileno=descriptors[1]) if len(descriptors) > 1 else None


@asynccontextmanager
async def open_local(settings: SandboxSettings) -> AsyncIterator[LocalBackend]:
    """Give the backend `local`, or `subprocess` if the settings name that. Leaving ends every sandbox."""
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"the {settings.backend} backend needs Linux; e2b works everywhere")
    with open_cgroups() as (cgroups, why):
        async with anyio.create_task_group() as owners:
            try:
                yield LocalBackend(settings, owners, cgroups, why)
            finally:
                owners.cancel_scope.cancel()
