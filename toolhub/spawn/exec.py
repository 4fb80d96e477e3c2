"""The hub's side of the supervisor: ask for a child, hold its pipes, hear of its end.

`open_spawner()` gives a `Spawner`; the supervisor process behind it starts with the first child and is replaced if it
dies. Closing a `Child`'s control socket is all it takes to end the server with everything below it, so cleaning up
never needs an `await`.
"""

from __future__ import annotations

import array
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from toolhub.journal import Journal
from toolhub.spawn import supervisor
from toolhub.spawn.cgroup import Cgroup

SCRIPT = Path(supervisor.__file__)
# The supervisor needs a moment to kill what is left below it; it bounds itself to about a second.
SUPERVISOR_EXIT_S = 3.0
INHERITED_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR")


def child_environment(extra: Mapping[str, str], inherit: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a server: a short allow-list of the hub's own, then what the config says.

    The folder of the hub's interpreter ends PATH, so that servers installed beside toolhub are found without activating
    its virtual environment.
    """
    names = (*INHERITED_VARIABLES, *inherit)
    environment = {name: os.environ[name] for name in names if name in os.environ}
    beside = os.path.dirname(sys.executable)
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    environment["PATH"] = os.pathsep.join(folders if beside in folders else [*folders, beside])
    return environment | dict(extra)


class SpawnFailed(Exception):
    """The command could not be executed; the message says why and what to do."""


@dataclass(eq=False)
class Child:
    """A running server: its pid, the hub's ends of its pipes, and the line to its keeper.

    Somebody must run `watch()`; it sets `exited` when the server process has ended and `gone` when nothing that it
    started is left.
    """

    pid: int
    start_time: str | None
    stdin: int
    stdout: int
    stderr: int
    exit_code: int | None = None
    """Exit status, or the negative signal number; None while it runs or if its keeper was killed."""
    exited: anyio.Event = field(repr=False, default_factory=anyio.Event)
    gone: anyio.Event = field(repr=False, default_factory=anyio.Event)
    _control: socket.socket = field(repr=False, default_factory=socket.socket)
    _unread: bytearray = field(repr=False, default_factory=bytearray)
    _journal: Journal | None = field(repr=False, default=None)

    async def watch(self) -> None:
        """Follow the keeper's messages until nothing is left of the server."""
        while (message := await _next_message(self._control, self._unread)) is not None:
            if "exit" in message:
                self.exit_code = message["exit"]
                self.exited.set()
        self.exited.set()
        self.gone.set()
        if self._journal is not None:
            self._journal.forget(self.pid)

    def terminate(self) -> None:
        """SIGTERM to the server's process group."""
        self._command(b"T")

    def kill(self) -> None:
        """SIGKILL to the server and everything below it."""
        self._command(b"K")

    def _command(self, letter: bytes) -> None:
        try:
            self._control.send(letter)
        except OSError:
            pass  # the keeper has ended, and so has everything below it

    def close_stdin(self) -> None:
        """Give the server EOF on its stdin; harmless when repeated."""
        if self.stdin >= 0:
            anyio.notify_closing(self.stdin)  # a flush may be waiting for room in the pipe
            os.close(self.stdin)
            self.stdin = -1

    def close(self) -> None:
        """Close every descriptor; the keeper kills whatever still runs. Harmless when repeated."""
        self.close_stdin()
        for name in ("stdout", "stderr"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)
        self._control.close()


async def _next_message(control: socket.socket, unread: bytearray) -> dict[str, Any] | None:
    """Return the keeper's next JSON line, or None when the keeper has ended."""
    while b"\n" not in unread:
        try:
            chunk = control.recv(4096)
        except BlockingIOError:
            await anyio.wait_readable(control)
            continue
        except OSError:
            return None
        if not chunk:
            return None
        unread += chunk
    line, _, rest = bytes(unread).partition(b"\n")
    unread[:] = rest
    message: dict[str, Any] = json.loads(line)
    return message


class Spawner:
    """Starts children through one supervisor process. Use `open_spawner()`."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self._cgroup: Cgroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._sending = anyio.Lock()

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None) -> Child:
        """Start `argv` in a session of its own with exactly `env`; return once it is executed.

        Raises SpawnFailed when it cannot be (not found, not executable, no such directory).
        """
        cwd = os.path.abspath(cwd or os.curdir)  # noqa: ASYNC240  # no disk access; the supervisor's own is "/"
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        control, keepers_end = socket.socketpair()
        control.setblocking(False)
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1], keepers_end.detach()]
        child = Child(0, None, ours[0], ours[1], ours[2], _control=control, _journal=self._journal)
        try:
            try:
                for fd in ours:
                    os.set_blocking(fd, False)
                await self._send({"argv": list(argv), "env": dict(env), "cwd": cwd}, theirs)
            finally:
                for fd in theirs:
                    os.close(fd)
            await self._wait_started(child, argv, env, cwd)
        except BaseException:
            child.close()  # the keeper reads EOF and ends whatever it had started
            raise
        return child

    async def _wait_started(self, child: Child, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        message = await _next_message(child._control, child._unread)
        if message is None:
            raise SpawnFailed("the supervisor process was killed while it was starting the server; try again")
        if "failed" in message:
            raise SpawnFailed(explain_exec_error(message["failed"], argv[0], env, cwd))
        child.pid, child.start_time = message["pid"], message["start_time"]
        if self._journal is not None:
            self._journal.record(child.pid, child.start_time, argv[0])

    async def _send(self, request: dict[str, Any], fds: list[int]) -> None:
        body = json.dumps(request).encode()
        async with self._sending:
            for attempt in (1, 2):
                try:
                    await self._send_once(body, fds)
                    return
                except (
                    BrokenPipeError,
                    ConnectionResetError,
                ):  # the supervisor was killed: start another, once
                    self._discard()
                    if attempt == 2:
                        raise SpawnFailed("the supervisor process dies as soon as it starts") from None

    async def _send_once(self, body: bytes, fds: list[int]) -> None:
        if self._requests is None:
            self._start_supervisor()
        requests = self._requests
        assert requests is not None
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        await anyio.wait_writable(requests)
        requests.sendmsg([supervisor.HEADER.pack(len(body))], ancillary)
        remaining = memoryview(body)
        while remaining:
            try:
                remaining = remaining[requests.send(remaining) :]
            except BlockingIOError:
                # A half-sent request would poison the stream; this send finishes even if the caller leaves.
                with anyio.CancelScope(shield=True):
                    await anyio.wait_writable(requests)

    def _start_supervisor(self) -> None:
        self._requests, theirs = socket.socketpair()
        self._requests.setblocking(False)
        if self._cgroup is None and self._journal is not None:
            self._cgroup = self._journal.make_cgroup()  # not before: without a supervisor nobody removes it for us
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
            self._cgroup.adopt(self._process.pid)  # before its first request, so that every child is born inside

    def _discard(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove_cgroup(self) -> None:
        """Remove the children's cgroup; they have ended."""
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
    """Hold a spawner; leaving ends every child that is still there."""
    spawner = Spawner(journal)
    try:
        yield spawner
    finally:
        await spawner.aclose()
        spawner.remove_cgroup()


def explain_exec_error(
    error: tuple[int, str, str | None], command: str, env: Mapping[str, str], cwd: str | None
) -> str:
    """Turn errno, text and file name of a failed exec into a cause and a way out."""
    code, text, filename = error
    if cwd and filename == cwd:
        return f"working directory {cwd!r}: {text}; create it or correct `cwd`"
    if code == errno.ENOENT and "/" not in command:
        path = textwrap.shorten(env.get("PATH", "").replace(":", " "), 120, placeholder=" ...")
        return f"{command!r} not found on PATH ({path}); install it or give its full path"
    if code == errno.ENOENT and os.path.exists(command):
        return f"{command!r} names an interpreter in its first line that does not exist; reinstall it"
    if code == errno.ENOENT:
        return f"{command!r} does not exist; correct `command`"
    if code == errno.EACCES:
        return f"{command!r} is not executable (permission denied); try: chmod +x {shutil.which(command) or command}"
    return f"{command!r} could not be executed: {text}"
