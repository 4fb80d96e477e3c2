"""A server's stdin and stdout as the sink and the source of a `Peer`.

The event loop calls the reader when stdout has data, and the reader sets the futures of the answers: there is no task
or stream between the pipe and the caller. It reads one chunk per round of the loop, and handles a bounded number of
lines, so that a server that never stops writing cannot block the loop.

The SDK's reader joins its buffer with every chunk, so that one line of 20 MB costs seconds of the event loop.
`LineBuffer` looks at each byte once. Long lines are decoded in a worker thread by a decoder whose containers are Python
code, so that the interpreter can switch threads between elements: the loop goes on while 20 MB are parsed.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from json import decoder, scanner
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.to_thread
from pydantic_core import from_json, to_json

from toolhub.channel.jsonrpc.futures import Future, future_factory, readable
from toolhub.model import Json

_READ_BYTES = 1 << 18
# About half a millisecond of small messages; then the loop serves others.
_LINES_PER_ROUND = 64
# A line that cannot be JSON-RPC costs a small part of a message. With as many per round as messages, a server's answer
# behind a megabyte of debug output would wait for 650 rounds of a busy loop.
_NOISE_PER_ROUND = 1024
# Requests wait while this much is unsent, so that a server that stops reading does not fill the hub's memory.
_HIGH_WATER_BYTES = 1 << 20
# Answers and notices do not wait. The other side is given up when so much of them is unsent beyond the high water.
_MOST_OVERDUE_BYTES = 1 << 26
NOISE_KEPT, NOISE_CHARS = 20, 200

# Below this, decoding takes about a millisecond and a thread hop would cost more than it saves.
INLINE_BYTES = 1 << 20


class Pipes(Protocol):
    """The hub's descriptors of a process's stdin (negative once closed) and stdout."""

    stdin: int
    stdout: int


class StdoutStream:
    """Messages from a server. Other lines on its stdout are counted as noise and kept for error messages."""

    def __init__(self, child: Pipes, *, limit: int) -> None:
        self._child = child
        self._buffer = LineBuffer(limit)
        self._lines: deque[bytes] = deque()
        self._ended = False
        self._crash: Exception | None = None
        self._take: Callable[[Any], bool]
        self._halt: Future[bytes | None] | None = None
        """Set to interrupt the reading: a line too long to be decoded in the event loop, or None at the end."""
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

    def fail(self, reason: str) -> None:
        """Make the stream end now, for this reason."""
        self.failure = reason
        self.end()

    def put_back(self, data: bytes) -> None:
        """Add what was read from the pipe before this stream was there."""
        self._lines.extend(self._buffer.feed(data))

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        """See `transport.MessageSource`; returns at EOF, on `end()`, or after a line over the limit."""
        self._take, new_future = take, future_factory()
        try:
            await self._receive(new_future)
        finally:
            del self._take  # it refers to this stream: without the cycle its memory is free at once

    async def _receive(self, new_future: Callable[[], Future[Any]]) -> None:
        while True:
            self._halt = new_future()
            async with readable(self._child.stdout, self._read_once):
                long_line = await self._halt
            if self._crash is not None:
                raise self._crash
            if long_line is None:
                return
            # Nothing is read meanwhile, so that the server's messages keep their order.
            try:
                message = await decode(long_line)
            except (ValueError, RecursionError):
                message = None
            self._take_message(message, long_line)

    def _read_once(self) -> bool:
        """Handle a bounded number of lines. Returns True if there are more already."""
        if self._halt is None or self._halt.done():
            return False
        if not self._lines and not self._ended:
            self._read()
        room = _LINES_PER_ROUND * _NOISE_PER_ROUND
        while self._lines and room > 0:
            line = self._lines.popleft()
            may_be_message = line.lstrip().startswith((b"{", b"["))
            room -= _NOISE_PER_ROUND if may_be_message else _LINES_PER_ROUND
            if len(line) > INLINE_BYTES:
                self._halt.set_result(line)
                return False
            try:
                self._take_message(_decoded(line) if may_be_message else None, line)
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
    """Return the line's JSON value; None, which is not a message, when it is not JSON."""
    try:
        return decode_inline(line)
    except (ValueError, RecursionError):
        return None


class StdinStream:
    """Messages to a server. Each is written whole, also when its sender is cancelled.

    give_up: called with the reason when the server has left more unread than the hub keeps for it.
    """

    def __init__(self, child: Pipes, flushers: anyio.abc.TaskGroup, give_up: Callable[[str], None]) -> None:
        self._child = child
        self._flushers = flushers
        self._give_up = give_up
        self._pending = bytearray()
        self._overdue = 0
        """Bytes that were sent although the stream was full."""
        self._room = anyio.Event()
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        return len(self._pending) > _HIGH_WATER_BYTES and not self._is_closed

    async def wait_room(self) -> None:
        await self._room.wait()

    def send(self, message: Json, headers: Mapping[str, str] | None = None) -> None:
        """See `transport.MessageSink`."""
        if self._is_closed:
            raise anyio.BrokenResourceError
        data = to_json(message, inf_nan_mode="null") + b"\n"
        if self._pending:
            self._overdue = self._overdue + len(data) if self.is_full else 0
            if self._overdue > _MOST_OVERDUE_BYTES:
                self._pending.clear()
                self.close()
                self._give_up(f"it does not read its messages: more than {_MOST_OVERDUE_BYTES} bytes wait for it")
                raise anyio.BrokenResourceError
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
            self._pending.clear()  # the server is gone; the reader reports its death
            self._make_room()

    def _make_room(self) -> None:
        self._room.set()
        self._room = anyio.Event()


# --- lines ------------------------------------------------------------------------------------------------------------


class LineTooLong(Exception):
    """One line exceeded the limit."""


class LineBuffer:
    """Splits chunks into lines; holds at most `limit` bytes of an unfinished one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes. Raises LineTooLong."""
        head, newline, rest = chunk.partition(b"\n")
        self._pieces.append(head)
        self._held += len(head)
        if self._held > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        if not newline:
            return []
        lines = [b"".join(self._pieces), *rest.split(b"\n")]
        if max(map(len, lines)) > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        last = lines.pop()
        self._pieces, self._held = [last], len(last)
        return lines


class _InterruptibleDecoder(json.JSONDecoder):
    """The standard decoder with its containers in Python and its strings in C."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = decoder.JSONObject  # type: ignore[attr-defined]  # missing in typeshed
        self.parse_array = decoder.JSONArray  # type: ignore[attr-defined]  # missing in typeshed
        self.parse_string = decoder.scanstring  # type: ignore[attr-defined]  # missing in typeshed
        self.memo: dict[str, str] = {}
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # missing in typeshed


def _decode_long(line: bytes) -> Any:
    return _InterruptibleDecoder().decode(line.decode("utf-8", "replace"))


async def decode(line: bytes) -> Any:
    """Return the JSON value of one line; invalid UTF-8 becomes U+FFFD. Raises ValueError when it is not JSON."""
    if len(line) > INLINE_BYTES:
        return await anyio.to_thread.run_sync(_decode_long, line)
    return decode_inline(line)


def decode_inline(line: bytes) -> Any:
    """Like `decode`, in the caller's thread whatever the length."""
    try:
        # By default pydantic keeps up to 16,384 strings of what it decoded; values hardly ever come again.
        return from_json(line, cache_strings="keys")
    except ValueError:
        # jiter refuses invalid UTF-8 outright; a result with one bad byte is still a result.
        return json.loads(line.decode("utf-8", "replace"))
