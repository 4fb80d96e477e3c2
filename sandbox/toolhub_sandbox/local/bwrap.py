"""The backend `bwrap`: bubblewrap, a widely reviewed program, makes the namespaces.

Slower than `local`: each sandbox starts an interpreter of its own and loads the profile's modules again.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio

from toolhub.config import SandboxProfile, SandboxSettings
from toolhub_sandbox.errors import SandboxUnavailable
from toolhub_sandbox.inside.agent import SandboxOptions
from toolhub_sandbox.inside.frames import encode
from toolhub_sandbox.inside.isolation import (
    CONFIG_FILES,
    GENERATED_FILES,
    NETWORK_FILES,
    SYSTEM_FOLDERS,
    UID,
    USR_MERGED,
)
from toolhub_sandbox.local.backend import LocalBackend, Spawner
from toolhub_sandbox.local.cgroups import open_cgroups
from toolhub_sandbox.local.fork_server import LIBRARY, interpreter_command, interpreter_environment, interpreter_folders
from toolhub_sandbox.local.uids import account
from toolhub_sandbox.model import Isolation

_EXIT_S = 5.0


class BwrapBackend(LocalBackend):
    """Like `LocalBackend`, but a `bwrap` process starts each sandbox."""

    @property
    def isolation(self) -> Isolation:
        local = super().isolation
        limits, weaker = local.limits, local.weaker
        if not self._cgroups:
            limits = "rlimits"
            weaker = (
                f"no cgroup ({self._why_cgroups}): memory is bounded for each process and each file system alone, cpus "
                "and sockets not at all",
                *weaker[1:],
            )
        summary = f"bubblewrap: {local.summary}"
        return dataclasses.replace(local, backend="bwrap", summary=summary, limits=limits, weaker=weaker)

    @property
    def memory_bytes(self) -> int | None:
        return self._cgroups.memory_bytes if self._cgroups else None

    async def _can_change_uid(self, name: str, profile: SandboxProfile) -> bool:
        return True

    async def _spawner(self, name: str, profile: SandboxProfile, uid: int | None, stack: AsyncExitStack) -> Spawner:
        if self._folders is None:
            self._folders = await anyio.to_thread.run_sync(interpreter_folders, self._python)
        own = account(self._settings.user) if uid is None else (uid, uid)
        launcher = BwrapLauncher(self._python, self._folders, profile, own)
        stack.push_async_callback(launcher.aclose)
        return launcher


@dataclass(eq=False)
class BwrapLauncher:
    """One `bwrap` process, for one sandbox."""

    python: str
    folders: list[str]
    profile: SandboxProfile
    account: tuple[int, int]
    listeners: list[Callable[[str], None]] = field(default_factory=list)
    """Never called: without a zygote nothing watches the memory."""
    _process: subprocess.Popen[bytes] | None = None

    async def spawn(self, options: SandboxOptions) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, _written(GENERATED_FILES) as files:
            try:
                self._process = subprocess.Popen(  # noqa: ASYNC220 - a fork and an exec, bound to this thread's life
                    [*self._privileges(), *self._bwrap(options, files), *self._inside(theirs.fileno())],
                    env=interpreter_environment(),
                    pass_fds=[theirs.fileno(), *files.values()],
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                )
            except OSError as exc:
                ours.close()
                raise SandboxUnavailable(f"bwrap cannot be run: {exc.strerror}") from exc
        ours.sendall(encode({"preload": self.profile.preload, "options": dataclasses.asdict(options)}))
        return ours

    def stderr_tail(self) -> str:
        """Return what bubblewrap wrote to stderr."""
        if self._process is None or self._process.stderr is None:
            return ""
        os.set_blocking(self._process.stderr.fileno(), False)
        return (self._process.stderr.read() or b"").decode(errors="replace").strip()

    def _privileges(self) -> list[str]:
        """A root hub changes to another uid first: the capabilities of root's bwrap would reach the sandbox."""
        if os.geteuid() != 0:
            return []
        uid, gid = self.account
        return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]

    def _bwrap(self, options: SandboxOptions, files: Mapping[str, int]) -> list[str]:
        # fmt: off
        command = [
            "bwrap", "--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--die-with-parent",
            "--as-pid-1", "--new-session", "--hostname", "sandbox", "--proc", "/proc", "--dev", "/dev",
            "--size", str(options.shm_bytes), "--tmpfs", "/dev/shm",  # noqa: S108 - it would have half of the memory
            "--size", str(options.tmp_bytes), "--tmpfs", "/tmp",  # noqa: S108
            "--size", str(options.home_bytes), "--tmpfs", "/home/user",
        ]
        # fmt: on
        if options.network == "host":
            command.append("--share-net")
        for path in (*SYSTEM_FOLDERS, *CONFIG_FILES, *(NETWORK_FILES if options.network == "host" else ())):
            command += ["--ro-bind-try", path, path]
        for path, descriptor in files.items():
            if not (options.network == "host" and path in NETWORK_FILES):
                command += ["--ro-bind-data", str(descriptor), path]
        for path in (*self.folders, *self.profile.read_only, str(LIBRARY / "toolhub_sandbox")):
            command += ["--ro-bind", path, path]
        for path in USR_MERGED:
            if os.path.islink(path):
                command += ["--symlink", os.readlink(path), path]
            else:
                command += ["--ro-bind-try", path, path]
        return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--"]

    def _inside(self, descriptor: int) -> list[str]:
        return interpreter_command(self.python, "bootstrap", "bwrap_entry", str(descriptor))

    async def aclose(self) -> None:
        """Wait for the process: the sandbox has ended."""
        if self._process is None:
            return
        if self._process.stderr is not None:
            self._process.stderr.close()
        with anyio.CancelScope(shield=True), anyio.move_on_after(_EXIT_S):
            await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return
        self._process.kill()
        self._process.wait()


@contextmanager
def _written(texts: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Give, for each path, a descriptor from which its text can be read."""
    descriptors = {}
    try:
        for path, text in texts.items():
            descriptors[path] = os.memfd_create(os.path.basename(path))
            os.write(descriptors[path], text.encode())
            os.lseek(descriptors[path], 0, os.SEEK_SET)
        yield descriptors
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


@asynccontextmanager
async def open_bwrap(settings: SandboxSettings) -> AsyncIterator[BwrapBackend]:
    """Give the `bwrap` backend. Raises SandboxUnavailable where there is no bubblewrap."""
    if shutil.which("bwrap") is None:
        raise SandboxUnavailable("'bwrap' was not found on PATH; install bubblewrap, or use the backend `local`")
    with open_cgroups() as (cgroups, why):
        async with anyio.create_task_group() as owners:
            try:
                yield BwrapBackend(settings, owners, cgroups, why)
            finally:
                owners.cancel_scope.cancel()
