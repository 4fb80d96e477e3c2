"""One HTTP exchange over the pool: a request and its answer. Every failure becomes an error of `web.errors`."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import anyio
import h2.exceptions
import httpcore2

from toolhub_servers.web.errors import Unreachable
from toolhub_servers.web.pool import Connection, Pool, connection_of
from toolhub_servers.web.request import OutgoingRequest, is_redirect
from toolhub_servers.web.response import ResponseBody, read_body

_NOT_SENT = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout, httpcore2.UnsupportedProtocol)
# A read may raise the last three if another task closes the connection.
_FAILURES = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    h2.exceptions.ProtocolError,
)
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
# Enough to read the body of a redirect to its end, so that its connection can be used again.
_PASSING_BYTES = 64 << 10


class Interrupted(Unreachable):
    """This client closed the connection because of another request on it. The host did nothing wrong."""


@dataclass(frozen=True, slots=True)
class RawResponse:
    """headers: in the order in which they came."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: ResponseBody

    def header(self, name: str) -> str:
        return self.fields().get(name, "")

    def fields(self) -> dict[str, str]:
        """Return the headers by lower-case name; repeated headers are joined by commas."""
        found: dict[str, list[str]] = {}
        for name, value in self.headers:
            found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        return {name: ", ".join(values) for name, values in found.items()}


async def exchange(pool: Pool, request: OutgoingRequest, *, connect_s: float, max_bytes: int) -> RawResponse:
    """Send a request and return the answer. Raises Unreachable, Interrupted, Forbidden."""
    wire_request = httpcore2.Request(
        request.method,
        httpcore2.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        ),
        headers=[(name.encode("ascii"), value.encode("utf-8")) for name, value in request.header_fields()],
        content=request.content,
        extensions={"timeout": {"connect": connect_s}},
    )
    try:
        async with _open_response(pool, wire_request) as response:
            head = RawResponse(response.status, response.headers, ResponseBody(b"", False, 0))
            async with aclosing(response.aiter_stream()) as chunks:
                if is_redirect(head.status, head.headers):
                    body = await read_body(chunks, "identity", _PASSING_BYTES)  # not used
                else:
                    body = await read_body(chunks, head.header("content-encoding"), max_bytes)
            if body.is_cut and (connection := connection_of(wire_request)) is not None:
                await connection.drop()
            return RawResponse(head.status, head.headers, body)
    except _FAILURES as exc:
        raise _translate(request, exc, connection_of(wire_request)) from exc
    except ValueError as exc:
        raise Unreachable(f"{request.host}: {exc}", sent=True) from exc


@asynccontextmanager
async def _open_response(pool: Pool, wire_request: httpcore2.Request) -> AsyncIterator[httpcore2.Response]:
    response, is_over = None, False
    try:
        response = await pool.handle_async_request(wire_request)
        yield response
        is_over = True
    finally:
        connection = connection_of(wire_request)
        if connection is not None:
            pool.carried += connection.was_open
            if not is_over:
                connection.retire()  # before the pool can give it another request
        if response is not None:
            await response.aclose()
        if connection is not None:
            await connection.release()


def _translate(request: OutgoingRequest, exc: Exception, connection: Connection | None) -> Unreachable:
    if connection is not None and connection.is_dropped:
        return Interrupted(f"the connection to {request.host} was closed because of another request on it", sent=True)
    cause = _deepest_cause(exc)
    reason = "it took too long" if isinstance(exc, httpcore2.TimeoutException) else _reason(cause)
    if isinstance(exc, _NOT_SENT):
        is_lasting = isinstance(cause, ssl.SSLCertVerificationError | UnicodeError) or (
            isinstance(cause, socket.gaierror) and cause.errno in _NO_SUCH_NAME
        )
        return Unreachable(f"no connection to {request.host}: {reason}", is_lasting=is_lasting)
    return Unreachable(f"the connection to {request.host} broke: {reason}", sent=True)


def _reason(exc: BaseException) -> str:
    if isinstance(exc, OSError):
        code = exc.errno
        if code in errno.errorcode and code is not None and not isinstance(exc, socket.gaierror | ssl.SSLError):
            return os.strerror(code)  # event loops replace this text by the address
        return exc.strerror or str(exc) or type(exc).__name__
    return str(exc) or type(exc).__name__


def _deepest_cause(exc: BaseException) -> BaseException:
    """Return the deepest cause that has a text. (The pool's `from None` hides causes, but not contexts.)"""
    found, cause = exc, exc.__cause__ or exc.__context__
    while isinstance(cause, Exception):
        found = cause if str(cause) else found
        cause = cause.__cause__ or cause.__context__
    return found
