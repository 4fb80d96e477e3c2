"""This process's stdin and stdout as lines of bytes, read and written by the event loop.

File objects need a worker thread, and two thread switches, for each line that is read, written and flushed. That is
three quarters of a server's time for a small call. The event loop reads when the kernel reports data, and writes all
lines of one round at once. Waiting here works on asyncio and uvloop, the event loops of these programs.

Pipes and sockets are written without blocking. That is a property of the open file, not of the descriptor, so it must
not be set on a file that others use: on a terminal, or on a stdout that is also stderr (`2>&1`), prints would fail.
Such files are written in small pieces when the kernel reports room. Regular files are always ready, and epoll refuses
them: they are read and written at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import stat
from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel

_READ_BYTES = 1 << 18
_WRITE_BYTES = 1 << 18
# Copies of the descriptors are above the standard three, whichever of those are closed.
_FIRST_PRIVATE = 3
# Senders wait while this much is unsent. A client that does not read must not fill the memory with results.
_HIGH_WATER_BYTES = 1 << 20
# For a client that reads nothing and does not leave. The time starts again whenever the client reads.
_LINGER_S = 5.0


def take_stdio() -> tuple[int, int]:
    """Return descriptors of the former stdin and stdout, which the caller owns. Child processes do not inherit them.

    From then on stdin is the null device and stdout is stderr, also for child processes: what a tool or a library
    prints is not part of the protocol, and no other code may read the client's requests. This is not undone at exit.
    """
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _FIRST_PRIVATE)
    sink = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _FIRST_PRIVATE)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        os.dup2(null, 1)
    os.close(null)
    return source, sink


class LineReader:
    """The lines that arrive at a descriptor, without their newlines. The last line may end without one."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._news = asyncio.Event()
        self._is_watched = False
        self._has_ended = False

    async def receive(self) -> bytes:
        """Return the next line. Raises EndOfStream."""
        while not self._lines:
            if self._has_ended:
                raise anyio.EndOfStream
            await self._wait_news()
        return self._lines.popleft()

    def end(self) -> None:
        """Read no more. `receive` returns what was read, and then comes to the end."""
        self._unwatch()
        if any(self._begun):
            self._lines.append(b"".join(self._begun))
        self._begun.clear()
        self._has_ended = True
        self._news.set()

    async def _wait_news(self) -> None:
        if self._watch():
            self._news.clear()
            await self._news.wait()
        else:
            await anyio.lowlevel.checkpoint()
            self._read()

    def _watch(self) -> bool:
        """Return False for a file, which is always ready."""
        if not self._is_watched:
            try:
                self._loop.add_reader(self._source, self._read)
            except PermissionError:
                return False
            self._is_watched = True
        return True

    def _unwatch(self) -> None:
        if self._is_watched:
            self._loop.remove_reader(self._source)
            self._is_watched = False

    def _read(self) -> None:
        if self._lines:
            self._unwatch()  # the rest stays with the client until it is wanted
            return
        try:
            chunk = os.read(self._source, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # the terminal hung up, or the connection was reset
            chunk = b""
        if not chunk:
            self.end()
            return
        self._split(chunk)
        self._news.set()

    def _split(self, chunk: bytes) -> None:
        """Split off lines. Each byte is looked at once, however long its line is."""
        head, *rest = chunk.split(b"\n")
        self._begun.append(head)
        if rest:
            self._lines.append(b"".join(self._begun))
            self._begun = [rest.pop()]
            self._lines.extend(rest)


class LineWriter:
    """Writes whole lines to a descriptor. A caller that is cancelled while it waits has sent nothing."""

    def __init__(self, sink: int, *, on_broken: Callable[[], None]) -> None:
        """on_broken: called when the other end is closed."""
        self._sink = sink
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._progress = asyncio.Event()
        self._is_due = self._is_watched = self._is_broken = False
        self._was_blocking = os.get_blocking(sink)
        self._most = _WRITE_BYTES
        self._room: select.poll | None = None
        if _is_ours(sink):
            os.set_blocking(sink, False)
        elif not stat.S_ISREG(os.fstat(sink).st_mode):
            self._most = select.PIPE_BUF  # no larger piece is sure not to block
            self._room = select.poll()
            self._room.register(sink, select.POLLOUT)

    async def send(self, line: bytes) -> None:
        """Send `line`, which ends with a newline. Wait while much is unsent. Raises BrokenResourceError."""
        while len(self._unsent) > _HIGH_WATER_BYTES:
            await self._wait_progress()
        if self._is_broken:
            raise anyio.BrokenResourceError
        self._unsent += line
        if not self._is_due:
            # Not at once: other calls may answer in this round of the loop, and their lines are sent together.
            self._is_due = True
            self._loop.call_soon(self._flush)

    async def drain(self) -> None:
        """Wait until everything is sent, or until the other end has read nothing for some seconds."""
        while self._unsent:
            with anyio.move_on_after(_LINGER_S, shield=True) as patience:
                await self._wait_progress()
            if patience.cancelled_caught:
                break
        self._unwatch()
        os.set_blocking(self._sink, self._was_blocking)  # other processes may have the same open file

    async def _wait_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _flush(self) -> None:
        try:
            del self._unsent[: self._write()]
        except BlockingIOError:
            pass
        except OSError:
            self._is_broken = True
            self._unsent.clear()
            self._on_broken()
        self._is_due = bool(self._unsent)
        self._continue()
        self._progress.set()

    def _write(self) -> int:
        if self._room is not None and not self._room.poll(0):
            return 0
        with memoryview(self._unsent) as view:
            return os.write(self._sink, view[: self._most])

    def _continue(self) -> None:
        if not self._unsent:
            self._unwatch()
        elif not self._is_watched:
            try:
                self._loop.add_writer(self._sink, self._flush)
                self._is_watched = True
            except PermissionError:  # a regular file: always ready
                self._loop.call_soon(self._flush)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._loop.remove_writer(self._sink)
            self._is_watched = False


def _is_ours(sink: int) -> bool:
    """Whether it is a pipe or a socket, and not also stderr."""
    file = os.fstat(sink)
    try:
        if os.path.samestat(file, os.fstat(2)):
            return False
    except OSError:
        pass  # there is no stderr
    return stat.S_ISFIFO(file.st_mode) or stat.S_ISSOCK(file.st_mode)
