"""This process's stdin and stdout as lines of bytes, read and written by the event loop itself.

File objects need a worker thread, and two changes of thread, for each line read, written and flushed: three quarters
of what a small call costs a server. The loop reads when the kernel says that there is something, and writes all lines
of one round at once. Whoever waits here waits on asyncio (or uvloop), which is what these programs run on.

Pipes and sockets are written without blocking. That is a property of the open file, not of the descriptor, so it must
not be set on one that others use: on a terminal, or on a stdout that is stderr as well (`2>&1`), prints would fail.
Those are written a little at a time when the kernel says that there is room. Files are always ready, and epoll refuses
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
# A descriptor above the standard three, whichever of them are closed.
_FIRST_PRIVATE = 3
# Senders wait while this much is unsent: a client that does not read costs memory for its calls, not for their results.
_HIGH_WATER_BYTES = 1 << 20
# For a client that reads nothing and does not go away; the time begins again with everything it reads.
_LINGER_S = 5.0


def take_stdio() -> tuple[int, int]:
    """Return descriptors of what stdin and stdout were, which are the caller's; child processes do not inherit them.

    From then on stdin is the null device and stdout is stderr, for child processes too: what a tool or a library
    prints is no protocol, and nobody but us reads the client's requests. It stays so: prints at exit are none either.
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
    """The lines that arrive at a descriptor, each without its newline, the last one also if it has none."""

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
        """Read no more: the next `receive`, or the one that waits, comes to the end when it has what was read."""
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
        """Return False when there is nothing to wait for, ever: it is a file."""
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
            self._unwatch()  # the rest stays with the client until somebody wants it
            return
        try:
            chunk = os.read(self._source, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # the terminal hung up, the connection was reset
            chunk = b""
        if not chunk:
            self.end()
            return
        self._split(chunk)
        self._news.set()

    def _split(self, chunk: bytes) -> None:
        """Each byte is looked at once, however long its line."""
        head, *rest = chunk.split(b"\n")
        self._begun.append(head)
        if rest:
            self._lines.append(b"".join(self._begun))
            self._begun = [rest.pop()]
            self._lines.extend(rest)


class LineWriter:
    """Lines to a descriptor, each whole: who is cancelled while waiting to send has sent nothing."""

    def __init__(self, sink: int, *, on_broken: Callable[[], None]) -> None:
        """on_broken: called when nobody reads the other end any more."""
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
            self._most = select.PIPE_BUF  # no more is sure to be taken without blocking
            self._room = select.poll()
            self._room.register(sink, select.POLLOUT)

    async def send(self, line: bytes) -> None:
        """Send `line`, which ends with a newline, waiting while much is unsent. Raises BrokenResourceError."""
        while len(self._unsent) > _HIGH_WATER_BYTES:
            await self._wait_progress()
        if self._is_broken:
            raise anyio.BrokenResourceError
        self._unsent += line
        if not self._is_due:
            # Not at once: what other calls answer in this round of the loop goes along.
            self._is_due = True
            self._loop.call_soon(self._flush)

    async def drain(self) -> None:
        """Wait until everything is sent, or the other end has read nothing for some seconds."""
        while self._unsent:
            with anyio.move_on_after(_LINGER_S, shield=True) as patience:
                await self._wait_progress()
            if patience.cancelled_caught:
                break
        self._unwatch()
        os.set_blocking(self._sink, self._was_blocking)  # for others who have the same open file

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
            except PermissionError:  # a file: ready again at once
                self._loop.call_soon(self._flush)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._loop.remove_writer(self._sink)
            self._is_watched = False


def _is_ours(sink: int) -> bool:
    """Whether it is a pipe or a socket, and not stderr as well."""
    file = os.fstat(sink)
    try:
        if os.path.samestat(file, os.fstat(2)):
            return False
    except OSError:
        pass  # there is no stderr
    return stat.S_ISFIFO(file.st_mode) or stat.S_ISSOCK(file.st_mode)
