"""HTTP/1.1 connections with limits, as a protocol class for uvicorn.

uvicorn limits neither the size of a request's head nor the time that a client takes to send a request. This class
counts the bytes that it gives to the parser and keeps one timer per connection:

    HEAD   waiting for a request, or its head arrives: `head_bytes`, `head_timeout_s`
    BODY   the head is complete, the body arrives: `body_bytes`, `body_timeout_s`
    IDLE   the request is complete: no timer here; uvicorn closes a connection that stays idle after its response

A response may take any time. The kernel disconnects a client that reads nothing of it for `write_timeout_s`.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import logging
import resource
import socket
from collections import Counter
from typing import Any

import uvicorn
from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from toolhub.config.models import HttpLimits

# A parsed small header needs forty times its bytes. Clients and proxies send about 20 headers.
MAX_HEADERS = 128
# Each request that waits behind another one costs memory before its token is checked.
MAX_PIPELINED = 16
# The parser gets at most this much at once, so that the counted bytes stay close to the parsed bytes.
_PIECE_BYTES = 64 * 1024
# Closing a socket with unread data sends a reset, which may make the client lose the answer with the reason.
_LINGER_S = 1.0
# The first keep-alive probe. The kernel so notices a client that vanished during a long call.
_KEEPALIVE_S = 60
# At most one log line per listener and minute reports refused connections.
_LOG_EVERY_S = 60.0

logger = logging.getLogger(__name__)


class ConnectionLimiter:
    """Counts the open connections of one listener, overall and per client address."""

    def __init__(self, limits: HttpLimits) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The servers and sandboxes of the hub need descriptors too.
        room = limits.connections if soft == resource.RLIM_INFINITY else max(1, soft // 4)
        self._limit = min(limits.connections, room)
        self._limit_per_address = limits.connections_per_address
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._logged_at = -_LOG_EVERY_S

    def __repr__(self) -> str:
        return f"<ConnectionLimiter {self._open} of {self._limit}>"

    def admit(self, address: str | None, now: float) -> bool:
        """Count one more connection, or return False. address: None on a unix socket, whose clients have none."""
        if self._open >= self._limit:
            self._log(now, "all clients together", self._limit)
            return False
        if address is not None and self._by_address[address] >= self._limit_per_address:
            self._log(now, address, self._limit_per_address)
            return False
        self._open += 1
        if address is not None:
            self._by_address[address] += 1
        return True

    def release(self, address: str | None) -> None:
        """Uncount an admitted connection that has ended."""
        self._open -= 1
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def _log(self, now: float, client: str, limit: int) -> None:
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            logger.warning(
                "connections of %s are refused: the limit is %d open ones; see hub.http in the config", client, limit
            )


def address_of(host: str) -> str:
    """Return the address by which a client is counted. For IPv6 that is its /64 network, which one client owns."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


class _Phase(enum.Enum):
    """What the next byte from the client belongs to."""

    HEAD = "head"
    BODY = "body"
    IDLE = "idle"


class LimitedProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: HttpLimits,
        limiter: ConnectionLimiter,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._limiter = limiter
        self._address: str | None = None
        self._is_admitted = False
        self._is_cut_off = False
        self._phase = _Phase.HEAD
        self._head_bytes = 0
        self._body_bytes = 0
        self._framing_bytes = 0
        """Bytes of a chunked body since its last piece of data: sizes, extensions, trailers."""
        self._current: RequestResponseCycle | None = None
        """The request whose body is arriving."""
        self._refusal: tuple[int, str] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<LimitedProtocol {self._address} {self._phase.name}{' cut off' if self._is_cut_off else ''}>"

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = address_of(self.client[0]) if self.client else None
        self._is_admitted = self._limiter.admit(self._address, self.loop.time())
        if self._is_admitted:
            _set_write_timeout(transport.get_extra_info("socket"), self._limits.write_timeout_s)
            self._watch()
            return
        # Closed without lingering, because lingering connections would use the descriptors that the limit protects.
        self._is_cut_off = True
        transport.write(_answer(503, "too many connections; close some, or try again later"))
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(_Phase.IDLE)
        if self._is_admitted:
            self._is_admitted = False
            self._limiter.release(self._address)
        super().connection_lost(exc)

    # --- what the client sends ---

    def data_received(self, data: bytes) -> None:
        if self._is_cut_off:
            return
        if self._phase is _Phase.IDLE:
            # Also for an empty line, which the parser skips. Else a client could stay connected by sending those.
            self._enter(_Phase.HEAD)
        while data and not self.transport.is_closing():
            room = self._limits.head_bytes - self._head_bytes if self._phase is _Phase.HEAD else _PIECE_BYTES
            piece, data = data[:room], data[room:]
            self._feed(piece)
            if self._refusal is not None:
                self._cut_off(*self._refusal)
                return
        self._watch()

    def _feed(self, piece: bytes) -> None:
        was_in_body, body_bytes = self._phase is _Phase.BODY, self._body_bytes
        self._head_bytes += len(piece) if self._phase is _Phase.HEAD else 0
        super().data_received(piece)
        if self._phase is _Phase.HEAD and self._head_bytes >= self._limits.head_bytes:
            self._refuse(431, f"the request line and the headers are larger than {self._limits.head_bytes} bytes")
        elif self._phase is _Phase.HEAD:
            self._check_headers()
        elif self._phase is _Phase.BODY and was_in_body:
            self._framing_bytes = 0 if self._body_bytes > body_bytes else self._framing_bytes + len(piece)
            if self._framing_bytes > self._limits.head_bytes:
                self._refuse(431, "the trailers or chunk extensions of the body are too large")

    def _check_headers(self) -> None:
        if self.headers is not None and len(self.headers) > MAX_HEADERS:
            self._refuse(431, f"the request has more than {MAX_HEADERS} headers")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.HEAD)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value.strip(b" \t"))  # white space around a value is no part of it (RFC 9110, 5.5)

    def on_headers_complete(self) -> None:
        self._enter(_Phase.BODY)
        self._check_headers()
        self._check_length()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(503, f"more than {MAX_PIPELINED} requests wait on this connection")
        if self._refusal is not None:
            return
        super().on_headers_complete()
        self._current = self.cycle
        if self.parser.should_upgrade():
            # The next bytes may belong to another protocol. They must not be parsed as a request.
            self.cycle.keep_alive = False
        # uvicorn would add trailers to the headers of a request that the guard has already admitted.
        self.headers = []

    def _check_length(self) -> None:
        for name, value in self.headers:
            # The parser has already refused a length that is not a number.
            if name == b"content-length" and int(value) > self._limits.body_bytes:
                self._refuse_body()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._refuse_body()
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refusal is None:
            super().on_message_complete()
            self._enter(_Phase.IDLE)

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body is larger than {self._limits.body_bytes} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Record why the connection must be cut off. It is cut off when the parser has returned."""
        self._refusal = self._refusal or (status, message)

    # --- time ---

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._current = None
        self._head_bytes = self._body_bytes = self._framing_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """Start the timer of this phase. A request that arrived complete needs none."""
        if self._timer is None and self._phase is not _Phase.IDLE and not self.transport.is_closing():
            is_head = self._phase is _Phase.HEAD
            seconds = self._limits.head_timeout_s if is_head else self._limits.body_timeout_s
            self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timer = None
        if self._phase is _Phase.HEAD:
            if self._is_answering:
                self._watch()  # with pipelining, the next request must not end the response to the current one
            elif self._head_bytes:
                self._cut_off(408, f"the headers did not arrive within {self._limits.head_timeout_s:g} s")
            else:
                self.transport.close()
        elif self.flow.read_paused:
            self._watch()  # the hub itself has paused reading
        else:
            self._cut_off(408, f"the body did not arrive within {self._limits.body_timeout_s:g} s")

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # --- the end ---

    def _cut_off(self, status: int, message: str) -> None:
        """Answer, unless that would cut another response in two. Then read nothing more, and close."""
        current, self._is_cut_off = self._current, True
        self._enter(_Phase.IDLE)
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        other_is_answered = bool(self.pipeline) or (current is None and self._is_answering)
        if other_is_answered or (current is not None and current.response_started and not current.response_complete):
            self.transport.abort()
            return
        if current is None or not current.response_started:
            self.transport.write(_answer(status, message))
        if current is not None:
            current.disconnected = True  # wakes the application, which may wait for the rest of the body
            current.message_event.set()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)


def _set_write_timeout(connection: socket.socket, seconds: float) -> None:
    """Make the kernel close a connection whose client reads nothing for `seconds`, or has vanished."""
    if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


def _answer(status: int, message: str) -> bytes:
    body = to_json({"error": {"type": "BadRequest" if status < 500 else "Overloaded", "message": message}})
    fields = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return STATUS_LINE[status] + fields + body
