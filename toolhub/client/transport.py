"""HTTP to one hub, from any thread, event loop and forked child.

A connection is a plain non-blocking socket that belongs to no event loop; whoever needs one takes it from the
idle ones and waits for it in the loop it happens to run in. So there is nothing to close when a loop ends and
nothing that could be "attached to a different loop". A forked child drops what it inherited.

Measured per call over a unix socket, beyond what a blocking socket needs (Python 3.11, 2 cores, medians):
httpx2.AsyncClient 390-440 us, httpcore2.AsyncConnectionPool 230-250 us, httpcore2's bare HTTP/1.1 connection as used
here 170-220 us. httpx2 and the pool also tie their sockets to the loop that opened them.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import httpcore2

from toolhub.client.address import Address
from toolhub.client.failures import HubLost, HubSilent
from toolhub.errors import HubClosed
from toolhub.wire import NDJSON, error_from_wire

JSON = "application/json"
# The hub closes idle connections after 75 s; ours go first, so that no request races with that.
_IDLE_S = 60.0
# Enough for the calls that one process has in flight; what a burst opened beyond is closed after it.
_MOST_IDLE = 64
# A stream sends a line at least every 15 s, if only to say that it lives.
STREAM_SILENCE_S = 60.0
_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError)


class Transport:
    """See the module's text."""

    def __init__(self, address: Address, token: str | None) -> None:
        self.address = address
        self.token = token
        self._origin = httpcore2.Origin(b"http", b"hub", 80)
        self._headers = [(b"host", address.authority.encode()), (b"content-type", JSON.encode())]
        if token:
            self._headers.append((b"authorization", f"Bearer {token}".encode()))
        self._idle: deque[_Connection] = deque()
        self._pid = os.getpid()
        # Closes the sockets also of a client that nobody closed.
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
        """Return the decoded answer, None for an empty one.

        bound: seconds after which a silent hub is given up. repeatable: ask again when the connection breaks.
        Raises what the hub answered, HubUnreachable, HubLost.
        """
        payload = _encoded(body)
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
            raise HubSilent(f"the hub at {self.address} was silent for {bound:g} s") from exc
        return decoded(self.address, status, raw)

    async def stream(self, target: str, body: Any, on_line: Callable[[Any], Awaitable[None]]) -> None:
        """POST, and await `on_line` with each line of the answer, decoded. Leaving early tells the hub to stop."""
        connection = await self._connection()
        request = self._request("POST", target, _encoded(body), accept=NDJSON)
        request.extensions = {"timeout": {"read": STREAM_SILENCE_S}}
        try:
            response = await connection.handle_async_request(request)
            try:
                if response.status >= 400:
                    decoded(self.address, response.status, await response.aread())
                await _split(response, on_line)
            finally:
                await response.aclose()
        except httpcore2.ReadTimeout as exc:
            raise HubSilent(f"the hub at {self.address} was silent for {STREAM_SILENCE_S:g} s") from exc
        except _FAILURES as exc:
            raise self._lost(exc) from exc
        finally:
            self._release(connection)

    async def _exchange(self, method: str, target: str, payload: bytes) -> tuple[int, bytes]:
        connection = await self._connection()
        try:
            response = await connection.handle_async_request(self._request(method, target, payload))
            try:
                return response.status, await response.aread()
            finally:
                await response.aclose()
        except _FAILURES as exc:
            raise self._lost(exc) from exc
        finally:
            self._release(connection)

    def _request(self, method: str, target: str, payload: bytes, *, accept: str = JSON) -> httpcore2.Request:
        headers = [
            *self._headers,
            (b"accept", accept.encode()),
            (b"content-length", str(len(payload)).encode()),
        ]
        url = httpcore2.URL(scheme=b"http", host=b"hub", port=80, target=target.encode())
        return httpcore2.Request(method, url, headers=headers, content=payload)

    async def _connection(self) -> _Connection:
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        library = _library()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.library == library and not connection.has_expired():
                return connection
            connection.sock.close()
        return _Connection(self._origin, await self.address.connect(), library)

    def _release(self, connection: _Connection) -> None:
        if not connection.is_idle():
            connection.sock.close()
            return
        self._idle.append(connection)
        while len(self._idle) > _MOST_IDLE:
            self._idle.popleft().sock.close()

    def close(self) -> None:
        """Close the idle connections; the next request opens a new one."""
        close_all(self._idle)

    def _lost(self, exc: Exception) -> HubLost:
        return HubLost(f"the hub at {self.address} went away during a request ({str(exc) or type(exc).__name__})")


class _Connection(httpcore2.AsyncHTTP11Connection):
    """One HTTP/1.1 connection, with the socket below it."""

    def __init__(self, origin: httpcore2.Origin, sock: socket.socket, library: str) -> None:
        super().__init__(origin, _SocketStream(sock), keepalive_expiry=_IDLE_S)
        self.sock = sock
        self.library = library


class _SocketStream(httpcore2.AsyncNetworkStream):
    """A non-blocking socket, waited for in whichever event loop asks.

    What is written goes out when the answer is asked for: head and body in one piece wake the hub once, not twice.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unsent = b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent += buffer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            if self._unsent:
                await self._flush()
            while True:
                try:
                    return self._sock.recv(max_bytes)
                except BlockingIOError:
                    with anyio.fail_after(timeout):
                        await anyio.wait_readable(self._sock)
        except TimeoutError as exc:
            raise httpcore2.ReadTimeout from exc
        except OSError as exc:
            raise httpcore2.ReadError(str(exc)) from exc

    async def _flush(self) -> None:
        left, self._unsent = memoryview(self._unsent), b""
        try:
            while left:
                try:
                    left = left[self._sock.send(left) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._sock)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the hub stopped listening, perhaps after an answer that says why

    async def aclose(self) -> None:
        self._sock.close()

    def get_extra_info(self, info: str) -> Any:
        return self._is_readable() if info == "is_readable" else None

    def _is_readable(self) -> bool:
        """On an idle connection there is nothing to read but its end."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


def close_all(connections: deque[_Connection]) -> None:
    """Close and forget idle connections. In a forked child this leaves the parent's side open."""
    while connections:
        try:
            connections.pop().sock.close()
        except IndexError:  # another thread was faster
            return


def decoded(address: Address, status: int, raw: bytes) -> Any:
    """Return an answer's JSON, None if it is empty. Raises the error that it carries."""
    try:
        data: Any = json.loads(raw) if raw else None
        error = data.get("error") if status >= 400 else None
    except (ValueError, AttributeError):
        data, error = None, None
    if isinstance(error, dict):
        raise error_from_wire(error)
    if status >= 400 or (raw and data is None):
        raise HubClosed(f"what answers at {address} is not a toolhub: HTTP {status}, {raw[:80]!r}")
    return data


def _encoded(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body, separators=(",", ":")).encode()


def _library() -> str:
    """httpcore2 keeps, per connection, a lock of the library under which it was first used."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return "trio"
    return "asyncio"


async def _split(response: httpcore2.Response, on_line: Callable[[Any], Awaitable[None]]) -> None:
    rest = b""
    async with aclosing(response.aiter_stream()) as chunks:
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                await on_line(json.loads(line))
