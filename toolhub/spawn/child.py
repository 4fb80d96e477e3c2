"""A running server process from the hub's side, and the request that starts one.

The supervisor and zygotes take the same request: a JSON object with four file descriptors. Both put a shim at the
other end of the control socket. All shims use the same messages.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from toolhub.spawn import supervisor
from toolhub.spawn.journal import Journal

Request = dict[str, Any]
"""`argv`, `env`, `cwd` (absolute), and further keys for a zygote."""


class SpawnFailed(Exception):
    """The command could not be executed. The message says why and what to do."""


class StarterLost(SpawnFailed):
    """The process that should have started the server died. The server does not run; the start can be tried again."""


@dataclass(eq=False)
class Child:
    """A running server: its pid, the hub's ends of its pipes, and the control socket of its shim.

    The owner must run `watch()`. It sets `exited` when the server process has ended, and `gone` when everything that
    the server started has ended too.
    """

    pid: int
    start_time: str | None
    stdin: int
    stdout: int
    stderr: int
    exit_code: int | None = None
    """Exit status, or the negative signal number; None while it runs or if its shim was killed."""
    exited: anyio.Event = field(repr=False, default_factory=anyio.Event)
    gone: anyio.Event = field(repr=False, default_factory=anyio.Event)
    on_ready: Callable[[], None] = field(repr=False, default=lambda: None)
    """The owner calls it when the server has answered its handshake."""
    on_close: Callable[[], None] = field(repr=False, default=lambda: None)
    """Called by `close()`, once."""
    _control: socket.socket = field(repr=False, default_factory=socket.socket)
    _unread: bytearray = field(repr=False, default_factory=bytearray)
    _journal: Journal | None = field(repr=False, default=None)

    async def watch(self) -> None:
        """Read the shim's messages until the server and everything below it have ended."""
        while (message := await next_message(self._control, self._unread)) is not None:
            if "exit" in message:
                self.exit_code = message["exit"]
                self.exited.set()
        self.exited.set()
        self.gone.set()
        if self._journal is not None:
            self._journal.forget(self.pid)

    def terminate(self) -> None:
        """Send SIGTERM to the server's process group."""
        self._command(b"T")

    def kill(self) -> None:
        """Send SIGKILL to the server and everything below it."""
        self._command(b"K")

    def _command(self, letter: bytes) -> None:
        try:
            self._control.send(letter)
        except OSError:
            pass  # the shim has ended, and so has everything below it

    def close_stdin(self) -> None:
        """Give the server EOF on its stdin. Idempotent."""
        if self.stdin >= 0:
            anyio.notify_closing(self.stdin)  # wakes a writer that waits for room in the pipe
            os.close(self.stdin)
            self.stdin = -1

    def close(self) -> None:
        """Close every descriptor. The shim then kills everything that still runs. Idempotent."""
        self.close_stdin()
        for name in ("stdout", "stderr"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)
        self._control.close()
        on_close, self.on_close = self.on_close, lambda: None
        on_close()


async def next_message(control: socket.socket, unread: bytearray) -> dict[str, Any] | None:
    """Return the shim's next JSON line, or None when the shim has ended."""
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


async def send_request(requests: socket.socket, body: bytes, fds: Sequence[int]) -> None:
    """Send one request with its descriptors. Raises OSError when the receiving process has ended."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    await anyio.wait_writable(requests)
    requests.sendmsg([supervisor.HEADER.pack(len(body))], ancillary)
    remaining = memoryview(body)
    while remaining:
        try:
            remaining = remaining[requests.send(remaining) :]
        except BlockingIOError:
            # A half-sent request would corrupt the stream. So this send completes even if the caller is cancelled.
            with anyio.CancelScope(shield=True):
                await anyio.wait_writable(requests)


async def request_child(
    request: Request,
    send: Callable[[bytes, list[int]], Awaitable[None]],
    *,
    journal: Journal | None,
    explain: Callable[[tuple[int, str, str | None]], str],
    stdin: int | None = None,
    extra_fds: Sequence[int] = (),
) -> Child:
    """Make a server's pipes, send the request with `send`, and return once the server is started.

    stdin: a descriptor that the server gets instead of a pipe. The caller keeps ownership of it and of `extra_fds`.
    explain: turns a failed start (errno, text, file name) into a message. Raises SpawnFailed.
    """
    pipes = [os.pipe() if stdin is None else (os.dup(stdin), -1), os.pipe(), os.pipe()]
    control, shims_end = socket.socketpair()
    control.setblocking(False)
    ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
    theirs = [pipes[0][0], pipes[1][1], pipes[2][1], shims_end.detach()]
    child = Child(0, None, ours[0], ours[1], ours[2], _control=control, _journal=journal)
    try:
        try:
            for fd in ours:
                if fd >= 0:
                    os.set_blocking(fd, False)
            await send(json.dumps(request).encode(), [*theirs, *extra_fds])
        finally:
            for fd in theirs:
                os.close(fd)
        await _wait_started(child, request, explain)
    except BaseException:
        child.close()  # the shim reads EOF and ends what it had started
        raise
    return child


async def _wait_started(child: Child, request: Request, explain: Callable[[tuple[int, str, str | None]], str]) -> None:
    message = await next_message(child._control, child._unread)
    if message is None:
        raise StarterLost("the process that was starting the server was killed; try again")
    if "failed" in message:
        raise SpawnFailed(explain(message["failed"]))
    child.pid, child.start_time = message["pid"], message["start_time"]
    if child._journal is not None:
        child._journal.record(child.pid, child.start_time, request["argv"][0])


# --- stopping, in the order of the MCP specification for stdio --------------------------------------------------------

# SIGKILL and reaping take milliseconds. Only a process that hangs in the kernel takes longer.
GONE_S = 2.0


async def stop(child: Child, *, grace: float) -> None:
    """End `child` and everything it started.

    grace: seconds to wait after closing stdin, and again after SIGTERM. Never raises, and ends within
    2 x grace + GONE_S even if the caller is cancelled. Another task must run `child.watch()`.
    """
    with anyio.CancelScope(shield=True):
        child.close_stdin()
        if not await _exited_within(child, grace):
            child.terminate()
            if not await _exited_within(child, grace):
                child.kill()
        with anyio.move_on_after(GONE_S):
            await child.gone.wait()


async def _exited_within(child: Child, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await child.exited.wait()
    return child.exited.is_set()
