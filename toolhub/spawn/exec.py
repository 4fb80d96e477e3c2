"""The hub's side of the supervisor: request a child, hold its pipes, learn when it ends.

`open_spawner()` returns a `Spawner`. Its supervisor process starts with the first child and is replaced if it dies.
Closing a `Child`'s control socket ends the server and everything below it. So clean-up never needs an `await`.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from toolhub.config import ServerSpec
from toolhub.spawn import supervisor
from toolhub.spawn.cgroup import Cgroup
from toolhub.spawn.child import Child, SpawnFailed, request_child, send_request
from toolhub.spawn.fork.server import ForkServer, open_forks
from toolhub.spawn.journal import Journal

__all__ = ["Child", "SpawnFailed", "Spawner", "child_environment", "explain_exec_error", "open_spawner"]

SCRIPT = Path(supervisor.__file__)
# The supervisor kills what is left below it, which takes it about a second at most.
SUPERVISOR_EXIT_S = 3.0
INHERITED_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR")


def child_environment(extra: Mapping[str, str], inherit: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a server: an allow-list of the hub's own variables, then those of the config.

    The folder of the hub's interpreter is the last entry of PATH. So servers that are installed beside toolhub are
    found without activating its virtual environment.
    """
    names = (*INHERITED_VARIABLES, *inherit)
    environment = {name: os.environ[name] for name in names if name in os.environ}
    beside = os.path.dirname(sys.executable)
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    environment["PATH"] = os.pathsep.join(folders if beside in folders else [*folders, beside])
    return environment | dict(extra)


class Spawner:
    """Starts children through one supervisor process. Use `open_spawner()`."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.forks: ForkServer | None = None
        self._journal = journal
        self._cgroup: Cgroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._sending = anyio.Lock()

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None, stdin: int | None = None
    ) -> Child:
        """Start `argv` in a session of its own with exactly `env`; return once it is executed.

        stdin: a descriptor that the child gets instead of a pipe; the caller keeps ownership of it. Raises SpawnFailed
        when `argv` cannot be executed (not found, not executable, no such directory).
        """
        cwd = os.path.abspath(cwd or os.curdir)  # noqa: ASYNC240  # no disk access; the supervisor's own is "/"
        return await request_child(
            {"argv": list(argv), "env": dict(env), "cwd": cwd},
            self._send,
            journal=self._journal,
            explain=lambda error: explain_exec_error(error, argv[0], env, cwd),
            stdin=stdin,
        )

    async def start(self, spec: ServerSpec, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        """Start a server: with `spawn: fork` from a running interpreter if possible, else by executing `argv`.

        argv: the resolved command of the spec. env: its environment; None: the spec's. Raises SpawnFailed.
        """
        env = child_environment(spec.env, spec.inherit_env) if env is None else env
        if spec.spawn == "fork" and self.forks is not None:
            return await self.forks.start(spec, argv, env=env)
        return await self.spawn(argv, env=env, cwd=spec.cwd)

    async def _send(self, body: bytes, fds: list[int]) -> None:
        async with self._sending:
            for attempt in (1, 2):
                try:
                    if self._requests is None:
                        self._start_supervisor()
                    assert self._requests is not None
                    await send_request(self._requests, body, fds)
                    return
                except (BrokenPipeError, ConnectionResetError):  # the supervisor was killed: start another, once
                    self._discard()
                    if attempt == 2:
                        raise SpawnFailed(
                            "the hub's supervisor process died twice right after its start, so no server can be "
                            "started; look for out-of-memory kills in the system log"
                        ) from None

    def _start_supervisor(self) -> None:
        self._requests, theirs = socket.socketpair()
        self._requests.setblocking(False)
        if self._cgroup is None and self._journal is not None:
            # Only now, because the supervisor is what removes the cgroup when the hub is killed.
            self._cgroup = self._journal.make_cgroup()
        cgroup = str(self._cgroup.path) if self._cgroup is not None else ""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SCRIPT), str(theirs.fileno()), str(os.getpid()), cgroup],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
                env={},
            )
        if self._cgroup is not None:
            self._cgroup.adopt(self._process.pid)  # before its first request, so that every child is a member

    def _discard(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove_cgroup(self) -> None:
        """Remove the children's cgroup. Call it when they have ended."""
        if self._cgroup is not None:
            self._cgroup.remove()

    async def aclose(self) -> None:
        """End the supervisor, which ends everything below it. Waits at most SUPERVISOR_EXIT_S."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        process, self._process = self._process, None
        if process is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(SUPERVISOR_EXIT_S):
            while process.poll() is None:
                await anyio.sleep(0.01)
        if process.poll() is None:
            process.kill()
            process.wait()


@asynccontextmanager
async def open_spawner(journal: Journal | None = None) -> AsyncIterator[Spawner]:
    """Hold a spawner. Leaving the block ends every child that still runs."""
    spawner = Spawner(journal)
    try:
        async with open_forks(spawner.spawn, journal) as spawner.forks:
            yield spawner
    finally:
        await spawner.aclose()
        spawner.remove_cgroup()


def explain_exec_error(
    error: tuple[int, str, str | None], command: str, env: Mapping[str, str], cwd: str | None
) -> str:
    """Turn errno, text and file name of a failed exec into a cause and a remedy."""
    code, text, filename = error
    if cwd and filename == cwd:
        return f"working directory {cwd!r}: {text}; create it or correct `cwd`"
    if code == errno.ENOENT and "/" not in command:
        path = textwrap.shorten(env.get("PATH", "").replace(":", " "), 120, placeholder=" ...")
        return f"{command!r} not found on PATH ({path}); install it or give its full path"
    if code == errno.ENOENT and os.path.exists(command):
        return f"the first line of {command!r} names an interpreter that does not exist; reinstall {command!r}"
    if code == errno.ENOENT:
        return f"{command!r} does not exist; correct `command`"
    if code == errno.EACCES:
        return f"{command!r} is not executable (permission denied); try: chmod +x {shutil.which(command) or command}"
    return f"{command!r} could not be executed: {text}"
