"""The two ends of a server's stdio as the source and the sink of a `Peer`.

The event loop calls the reader when there is something to read, and the reader resolves what the messages answer: no
task, stream or event stands between the pipe and whoever waits. It takes one chunk per round of the loop, and of that a
bounded number of lines, so that a server which never stops talking cannot keep the loop to itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import anyio.abc
from pydantic_core import to_json

from toolhub.channel.jsonrpc.futures import Future, future_factory, readable
from toolhub.channel.jsonrpc.lines import INLINE_BYTES, LineBuffer, LineTooLong, decode, decode_inline
from toolhub.model import Json

_READ_BYTES = 1 << 18
# Some half a millisecond of small messages; other servers' messages and the hub's own work come in between.
_LINES_PER_ROUND = 64
# Writers wait while this much is unsent; a server that stops reading stdin then costs its callers, not memory.
_HIGH_WATER_BYTES = 1 << 20
NOISE_KEPT, NOISE_CHARS = 20, 200


class Pipes(Protocol):
    """A process, as far as it matters here: the hub's descriptors of its stdin (negative once closed) and stdout."""

    stdin: int
    stdout: int


class StdoutStream:
    """Messages a server sends; everything else it prints is counted as noise, kept for diagnosis, and never fatal."""

    def __init__(self, child: Pipes, *, limit: int) -> None:
        self._child = child
        self._buffer = LineBuffer(limit)
        self._lines: deque[bytes] = deque()
        self._ended = False
        self._crash: Exception | None = None
        self._take: Callable[[Any], bool]
        self._halt: Future[bytes | None] | None = None
        """What interrupts the reading: a line that is too long to be decoded in the loop, or None at the end."""
        self.noise_lines = 0
        self.noise: deque[str] = deque(maxlen=NOISE_KEPT)
        self.failure = ""

    @property
    def has_ended(self) -> bool:
        return self._ended

    def end(self) -> None:
        """Make the stream end now, although a grandchild may still hold the pipe open."""
        self._ended = True
        if not self._lines and self._halt is not None and not self._halt.done():
            self._halt.set_result(None)

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        """See `transport.MessageSource`; returns at EOF, on `end()`, or after a line over the limit."""
        self._take, new_future = take, future_factory()
        while True:
            self._halt = new_future()
            async with readable(self._child.stdout, self._turn):
                long_line = await self._halt
            if self._crash is not None:
                raise self._crash
            if long_line is None:
                return
            # Nothing is read meanwhile: the messages of one server keep their order, and the server waits.
            try:
                message = await decode(long_line)
            except (ValueError, RecursionError):
                message = None
            self._take_message(message, long_line)

    def _turn(self) -> bool:
        """Take what the server said, a bounded part of it in one round of the loop; True: there is more already."""
        if self._halt is None or self._halt.done():
            return False
        if not self._lines and not self._ended:
            self._read()
        for _ in range(min(_LINES_PER_ROUND, len(self._lines))):
            line = self._lines.popleft()
            if len(line) > INLINE_BYTES:
                self._halt.set_result(line)
                return False
            try:
                self._take_message(_decoded(line), line)
            except Exception as exc:
                self._crash = exc
                self._halt.set_result(None)
                return False
        if not self._lines and self._ended:
            self._halt.set_result(None)
        return bool(self._lines)

    def _read(self) -> None:
        try:
            chunk = os.read(self._child.stdout, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        try:
            self._lines.extend(self._buffer.feed(chunk))
        except LineTooLong as exc:
            self.failure = f"it sent {exc} (limits.max_result_bytes)"
            self._ended = True
        self._ended = self._ended or not chunk

    def _take_message(self, message: Any, line: bytes) -> None:
        if not self._take(message) and line.strip():
            self.noise_lines += 1
            self.noise.append(line[:NOISE_CHARS].decode("utf-8", "replace").rstrip())


def _decoded(line: bytes) -> Any:
    """The line's JSON value; None, which is no message, when it is not JSON."""
    try:
        return decode_inline(line)
    except (ValueError, RecursionError):
        return None


class StdinStream:
    """Messages to a server, each written whole: a cancelled sender never leaves half a line behind."""

    def __init__(self, child: Pipes, flushers: anyio.abc.TaskGroup) -> None:
        self._child = child
        self._flushers = flushers
        self._pending = bytearray()
        self._room = anyio.Event()
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        return len(self._pending) > _HIGH_WATER_BYTES and not self._is_closed

    async def wait_room(self) -> None:
        await self._room.wait()

    def send(self, message: Json) -> None:
        """See `transport.MessageSink`."""
        if self._is_closed:
            raise anyio.BrokenResourceError
        data = to_json(message, inf_nan_mode="null") + b"\n"
        if self._pending:
            self._pending += data
            return
        written = self._write(data)
        if written < len(data):
            self._pending += memoryview(data)[written:]
            self._flushers.start_soon(self._flush)

    def close(self) -> None:
        self._is_closed = True
        self._make_room()

    def _write(self, data: bytes | memoryview) -> int:
        if self._child.stdin < 0:
            raise anyio.BrokenResourceError
        try:
            return os.write(self._child.stdin, data)
        except BlockingIOError:
            return 0
        except OSError as exc:
            raise anyio.BrokenResourceError from exc

    async def _flush(self) -> None:
        try:
            while self._pending and self._child.stdin >= 0:
                await anyio.wait_writable(self._child.stdin)
                with memoryview(self._pending) as view:
                    written = self._write(view[:_READ_BYTES])
                del self._pending[:written]
                self._make_room()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._pending.clear()  # the server is gone; its death is told by the reader
            self._make_room()

    def _make_room(self) -> None:
        self._room.set()
        self._room = anyio.Event()
