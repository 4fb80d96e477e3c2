"""The two ends of a server's stdio as the streams that the SDK's dispatcher reads and writes.

No task and no memory stream stands between the pipe and the dispatcher: each hop would cost an event-loop round.
"""

from __future__ import annotations

import os
from collections import deque
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import anyio.lowlevel
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError

from toolhub.channel.lines import LineBuffer, LineTooLong, decode
from toolhub.spawn.exec import Child

_READ_BYTES = 1 << 18
# Writers wait while this much is unsent; a server that stops reading stdin then costs its callers, not memory.
_HIGH_WATER_BYTES = 1 << 20
NOISE_KEPT, NOISE_CHARS = 20, 200


def to_message(value: Any) -> SessionMessage | None:
    """Build the SDK's message from one decoded line, or None when it is not JSON-RPC."""
    if not isinstance(value, dict):
        return None
    try:
        if "method" in value:
            kind = JSONRPCRequest if value.get("id") is not None else JSONRPCNotification
            return SessionMessage(kind.model_validate(value))
        if isinstance(value.get("result"), dict) and isinstance(value.get("id"), int | str):
            # Not validated: the result is opaque here, and may be tens of megabytes.
            return SessionMessage(
                JSONRPCResponse.model_construct(jsonrpc="2.0", id=value["id"], result=value["result"])
            )
        if "error" in value and value.get("id") is not None:
            error = ErrorData.model_validate(value["error"])
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=value["id"], error=error))
    except ValidationError:
        pass
    return None


class _Closing:
    """The context-manager half of the dispatcher's stream protocol."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """The pipe belongs to the child's owner, who closes it."""


class StdoutStream(_Closing):
    """Messages a server sends; everything else it prints is counted as noise, kept for diagnosis, and never fatal."""

    def __init__(self, child: Child, *, limit: int) -> None:
        self._child = child
        self._buffer = LineBuffer(limit)
        self._lines: deque[bytes] = deque()
        self._scope: anyio.CancelScope | None = None
        self._ended = False
        self.noise_lines = 0
        self.noise: deque[str] = deque(maxlen=NOISE_KEPT)
        self.failure = ""

    @property
    def has_ended(self) -> bool:
        return self._ended

    def end(self) -> None:
        """Make the stream end now, although a grandchild may still hold the pipe open."""
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage:
        """Return the next message. Raises EndOfStream at EOF, on `end()`, or after a line over the limit."""
        while True:
            while self._lines:
                message = await self._to_message(self._lines.popleft())
                if message is not None:
                    return message
            await self._fill()

    async def _fill(self) -> None:
        chunk = b""
        if not self._ended:
            with anyio.CancelScope() as self._scope:
                chunk = await self._read()
            self._scope = None
        if not chunk:
            self._ended = True
            raise anyio.EndOfStream
        try:
            self._lines.extend(self._buffer.feed(chunk))
        except LineTooLong as exc:
            self.failure = f"it sent {exc} (limits.max_result_bytes)"
            self._ended = True
            raise anyio.EndOfStream from None

    async def _read(self) -> bytes:
        while True:
            # Always suspends, so that a server which never stops talking cannot keep the loop to itself.
            await anyio.wait_readable(self._child.stdout)
            try:
                return os.read(self._child.stdout, _READ_BYTES)
            except BlockingIOError:
                continue

    async def _to_message(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            message = to_message(await decode(line))
        except (ValueError, RecursionError):
            message = None
        if message is None:
            self.noise_lines += 1
            self.noise.append(line[:NOISE_CHARS].decode("utf-8", "replace").rstrip())
        return message


class StdinStream(_Closing):
    """Messages to a server, each written whole: a cancelled sender never leaves half a line behind."""

    def __init__(self, child: Child, flushers: anyio.abc.TaskGroup) -> None:
        self._child = child
        self._flushers = flushers
        self._pending = bytearray()
        self._room = anyio.Event()

    async def send(self, item: SessionMessage) -> None:
        """Write one message, waiting while the server is not reading. Raises BrokenResourceError when it is gone."""
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        # Only requests wait: a cancellation has to leave at once, or a caller's deadline would wait for a deaf server.
        while len(self._pending) > _HIGH_WATER_BYTES and isinstance(item.message, JSONRPCRequest):
            await self._room.wait()
        if self._pending:
            self._pending += data
            return
        written = self._write(data)
        if written < len(data):
            self._pending += memoryview(data)[written:]
            self._flushers.start_soon(self._flush)

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
