"""HTTP to one hub, from any thread, event loop and forked child.

A connection is a plain non-blocking socket that belongs to no event loop. A request takes an idle connection and waits
for it in its own event loop. So the end of a loop closes nothing, and no connection is "attached to a different loop".
A forked child closes the connections that it inherited.
"""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from toolhub.client.address import Address, wait_readable, wait_writable
from toolhub.client.http1 import JSON, RECEIVE_BYTES, Http1, ProtocolError, common_headers, decoded, encoded
from toolhub.errors import HubLost, HubTimeout
from toolhub.wire import NDJSON

# The hub closes idle connections after 75 s. The client closes them earlier, so that no request races with that.
_IDLE_S = 60.0
# Enough for the calls that one process has in flight. Further connections are closed after their request.
_MOST_IDLE = 64
# The hub sends a line of a stream at least every 15 s, if needed a keep-alive.
STREAM_SILENCE_S = 60.0


class Transport:
    """See the module's text."""

    def __init__(self, address: Address, token: str | None) -> None:
        self.address = address
        self.token = token
        headers = common_headers(address, token)
        self._headers = [*headers, (b"accept", JSON)]
        self._stream_headers = [*headers, (b"accept", NDJSON.encode())]
        self._idle: deque[_Connection] = deque()
        self._pid = os.getpid()
        # Closes the sockets of a client that was garbage-collected without aclose().
        weakref.finalize(self, close_all, self._idle)

    def __repr__(self) -> str:
        return f"<Transport {self.address} idle={len(self._idle)}>"

    async def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        bound: float | None = None,
        repeatable: bool = False,
    ) -> Any:
        """Return the decoded answer; None for an empty one.

        bound: raise HubTimeout after this many seconds. repeatable: send the request again if the connection breaks.
        Raises the error that the hub answered, HubUnreachable, HubLost.
        """
        payload = encoded(body)
        try:
            with anyio.fail_after(bound):
                try:
                    status, raw = await self._exchange(method, target, payload)
                except HubLost:
                    if not repeatable:
                        raise
                    self.close()
                    status, raw = await self._exchange(method, target, payload)
        except TimeoutError as exc:
            raise self._silent(bound) from exc
        return decoded(self.address, status, raw)

    async def stream(self, target: str, body: Any, on_line: Callable[[Any], Awaitable[None]]) -> None:
        """POST, and await `on_line` with each decoded line of the answer. Cancellation makes the hub stop."""
        connection = await self._connection()
        rest = b""
        try:
            await self._send(connection, "POST", target, self._stream_headers, encoded(body))
            while part := await self._read(connection, STREAM_SILENCE_S):
                rest += part
                if connection.http.status < 400:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        await on_line(json.loads(line))
            if connection.http.status >= 400:
                decoded(self.address, connection.http.status, rest)
        finally:
            self._release(connection)

    @asynccontextmanager
    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], payload: bytes = b""
    ) -> AsyncIterator[tuple[int, Mapping[str, str], AsyncIterator[bytes]]]:
        """Send a request with these headers too; give status, headers and the parts of the body as they arrive.

        Leaving early ends the connection, which cancels the request. Raises HubUnreachable, HubLost.
        """
        given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        connection = await self._connection()
        try:
            await self._send(connection, method, target, [*common_headers(self.address, self.token), *given], payload)
            first = await self._read(connection)

            async def parts() -> AsyncIterator[bytes]:
                part = first
                while part:
                    yield part
                    part = await self._read(connection)

            yield connection.http.status, connection.http.answer_headers, parts()
        finally:
            self._release(connection)

    async def _exchange(self, method: str, target: str, payload: bytes) -> tuple[int, bytes]:
        connection = await self._connection()
        parts = []
        try:
            await self._send(connection, method, target, self._headers, payload)
            while part := await self._read(connection):
                parts.append(part)
            return connection.http.status, b"".join(parts)
        finally:
            self._release(connection)

    async def _send(
        self, connection: _Connection, method: str, target: str, headers: list[tuple[bytes, bytes]], payload: bytes
    ) -> None:
        try:
            await connection.send(connection.http.request(method, target, headers, payload))
        except OSError as exc:
            raise self._lost(exc) from exc

    async def _read(self, connection: _Connection, silence: float | None = None) -> bytes:
        """Return the next part of the answer's body; b"" at its end. silence: seconds to wait for it."""
        try:
            while (part := connection.http.read()) is None:
                data = await connection.receive(silence)
                if data is None:
                    raise self._silent(silence)
                connection.http.receive(data)
        except (OSError, ProtocolError) as exc:
            raise self._lost(exc) from exc
        return part

    async def _connection(self) -> _Connection:
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if not connection.has_expired():
                return connection
            connection.sock.close()
        return _Connection(await self.address.connect())

    def _release(self, connection: _Connection) -> None:
        if not connection.http.make_reusable():
            connection.sock.close()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        while len(self._idle) > _MOST_IDLE:
            self._idle.popleft().sock.close()

    def close(self) -> None:
        """Close the idle connections; the next request opens a new one."""
        close_all(self._idle)

    def _lost(self, exc: Exception) -> HubLost:
        return HubLost(f"the hub at {self.address} went away during a request ({str(exc) or type(exc).__name__})")

    def _silent(self, seconds: float | None) -> HubTimeout:
        return HubTimeout(f"the hub at {self.address} did not answer for {seconds:g} s")


class _Connection:
    """A non-blocking socket with its protocol state. It is awaited in the event loop of the current request."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.http = Http1()
        self.idle_since = 0.0

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                try:
                    left = left[self.sock.send(left) :]
                except BlockingIOError:
                    await wait_writable(self.sock)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the hub stopped reading, perhaps after an answer with the reason

    async def receive(self, timeout: float | None) -> bytes | None:
        """Return the next bytes; b"" at the end of the connection; None after `timeout` seconds."""
        while True:
            try:
                return self.sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                with anyio.move_on_after(timeout) as waiting:
                    await wait_readable(self.sock)
                if waiting.cancelled_caught:
                    return None

    def has_expired(self) -> bool:
        return time.monotonic() - self.idle_since > _IDLE_S or self._is_readable()

    def _is_readable(self) -> bool:
        """Whether an idle connection can be read, which means that the hub has closed it."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


def close_all(connections: deque[_Connection]) -> None:
    """Close and forget idle connections. In a forked child this does not close the parent's connections."""
    while connections:
        try:
            connections.pop().sock.close()
        except IndexError:  # another thread was faster
            return
