"""HTTP/1.1 to one server: connections that are kept between requests, and answers that are read as they arrive.

A general client (httpx2) costs half a millisecond of CPU per request, more than all else that a call costs the hub.
This one does what MCP needs: TLS, proxies from the environment, cookies, a user and password in the URL, redirects
within the server's origin. It asks for answers that are not compressed: a few kilobytes of such an answer may stand for
any number of bytes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import functools
import re
import select
import socket
import ssl
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio
import httptools
import httpx2

from toolhub import __version__

# Of a response: its head, and between two pieces of its body.
_MOST_HEAD_BYTES = 100 * 1024
# A body is read no further while this much of it waits to be taken.
_HIGH_WATER_BYTES = 1 << 18
_NAME, _VALUE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_BAD_HEADER = "a header of the request has characters that HTTP does not allow"  # its value may be a secret
_FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
# Responses with lower ones (100, 103) come before the one that counts.
_LEAST_FINAL_STATUS = 200
# How long an address of a host may take to answer before the next one is tried as well.
_NEXT_ADDRESS_S = 0.25
# uvicorn and Node close a connection that was idle for 5 s. A request must not meet that.
_IDLE_S = 4.0
# After an answer a server ends its stream of events. Its connection is kept if it does so within this time.
_REST_S = 0.2
_MOST_IDLE = 20
_MOST_REDIRECTS = 20
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Those that a POST survives: with the others its body is lost.
_KEEPING_METHOD = frozenset({307, 308})
_PORTS = {"http": 80, "https": 443}


class ConnectFailed(Exception):
    """No connection came about, so nothing was sent."""


class ConnectionBroken(Exception):
    """The connection broke after something was sent."""


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The one of all sessions: loading the certificate authorities takes 20 ms and 600 KiB each time."""
    return httpx2.create_ssl_context()


class HttpOrigin(NamedTuple):
    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: httpx2.URL) -> HttpOrigin:
        return cls(url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS.get(url.scheme, 0))


class HttpClient:
    """The requests of one session. headers: sent with each of them. connect_timeout: seconds."""

    def __init__(self, url: str, headers: Mapping[str, str], *, connect_timeout: float) -> None:
        """Raises ValueError for what is no address of HTTP."""
        try:
            self.url = httpx2.URL(url)
        except httpx2.InvalidURL as exc:
            raise ValueError(str(exc)) from exc
        if self.url.scheme not in _PORTS or not self.url.host:
            raise ValueError("it must begin with http:// or https:// and a host")
        fixed = {"user-agent": f"toolhub/{__version__}", **{name.lower(): value for name, value in headers.items()}}
        fixed["accept-encoding"] = "identity"
        if self.url.username or self.url.password:
            fixed["authorization"] = _basic(self.url.username, self.url.password)
        self._headers = {name.encode(): value.strip().encode() for name, value in fixed.items()}
        self._target = _Target.of(self.url)
        self._connect_timeout = connect_timeout
        self._cookies: httpx2.Cookies | None = None
        """None until the server has set one."""
        self._idle: deque[HttpConnection] = deque()
        self._ending: dict[HttpConnection, asyncio.TimerHandle] = {}
        """Those whose responses are of no interest any more, and when they are closed."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<HttpClient {self.address} idle={len(self._idle)}>"

    @property
    def address(self) -> str:
        """The URL for messages: a query or a user in it may be a secret."""
        return str(self.url.copy_with(query=None, fragment=None, userinfo=b""))

    async def send(
        self, method: str, headers: Mapping[str, str], body: bytes = b"", *, url: httpx2.URL | None = None
    ) -> HttpResponse:
        """Return the response as soon as its head is there; close it.

        Raises ConnectFailed, ConnectionBroken, and ValueError for headers that are not valid.
        Redirects are followed within the server's origin, where the headers belong. Another one is returned.
        """
        url = url or self.url
        for _ in range(_MOST_REDIRECTS):
            response = await self._send(method, headers, body, url)
            if response.location is None or not _may_follow(method, response.status, url, response.location):
                break
            response.close()
            url = response.location
        return response

    async def _send(self, method: str, headers: Mapping[str, str], body: bytes, url: httpx2.URL) -> HttpResponse:
        target = self._target if url is self.url else _Target.of(url)
        connection = await self._connection(target.origin)
        given = dict(headers) | connection.extra_headers
        if cookies := self._cookies_for(url):
            given["cookie"] = cookies
        if method == "POST":
            given["content-length"] = str(len(body))
        path = target.path if not connection.is_proxied else str(url.copy_with(userinfo=b"", fragment=None)).encode()
        try:
            sent: dict[bytes, bytes] = {b"host": target.host, **self._headers}
            sent |= {name.encode("ascii"): value.encode("latin-1") for name, value in given.items()}
            await connection.exchange(_request(method.encode(), path, sent, body))
        except UnicodeEncodeError:
            connection.close()
            raise ValueError(_BAD_HEADER) from None  # its own text has the value, which may be a secret
        except BaseException:
            connection.close()
            raise
        response = HttpResponse(self, connection, url)
        if "set-cookie" in response.headers:
            asked = httpx2.Request(method, url)
            self._cookies = self._cookies or httpx2.Cookies()
            self._cookies.extract_cookies(httpx2.Response(200, headers=connection.headers, request=asked))
        return response

    def _cookies_for(self, url: httpx2.URL) -> str | None:
        if self._cookies is None:
            return None
        request = httpx2.Request("GET", url)
        self._cookies.set_cookie_header(request)
        return request.headers.get("cookie")

    # --- connections ------------------------------------------------------------------------------------------------

    async def _connection(self, origin: HttpOrigin) -> HttpConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.origin == origin and not connection.has_expired():
                return connection
            connection.close()
        try:
            with anyio.fail_after(self._connect_timeout):
                return await _connect(origin)
        except TimeoutError:
            raise ConnectFailed(f"no connection within {self._connect_timeout:g} s") from None
        except (OSError, ValueError) as exc:
            raise ConnectFailed(str(exc) or type(exc).__name__) from exc

    def release(self, connection: HttpConnection) -> None:
        """Keep a connection whose response was read to its end, or close it."""
        if not self._is_closed and len(self._idle) < _MOST_IDLE and connection.make_reusable():
            self._idle.append(connection)
        else:
            connection.close()
        if self._idle and self._idle[0].has_expired():  # those that a burst of requests has opened
            self._idle.popleft().close()

    def release_soon(self, connection: HttpConnection) -> None:
        """Keep a connection if its response ends soon; nobody reads the rest of it."""
        if self._is_closed:
            connection.close()
            return
        closing = asyncio.get_running_loop().call_later(_REST_S, self._give_up, connection)
        self._ending[connection] = closing
        connection.discard(lambda: self._ended(connection))

    def _ended(self, connection: HttpConnection) -> None:
        if (closing := self._ending.pop(connection, None)) is not None:
            closing.cancel()
            self.release(connection)

    def _give_up(self, connection: HttpConnection) -> None:
        del self._ending[connection]
        connection.close()

    def close(self) -> None:
        """Close the connections that no response uses, and from now on each one whose response is closed."""
        self._is_closed = True
        for closing in self._ending.values():
            closing.cancel()
        for connection in (*self._idle, *self._ending):
            connection.close()
        self._idle.clear()
        self._ending.clear()


class _Target(NamedTuple):
    """What a request says of its address."""

    origin: HttpOrigin
    host: bytes
    path: bytes

    @classmethod
    def of(cls, url: httpx2.URL) -> _Target:
        return cls(HttpOrigin.of(url), url.netloc, url.raw_path)


class HttpResponse:
    """A response whose body is read in pieces. Headers have lower-case names; repeated ones are joined."""

    def __init__(self, client: HttpClient, connection: HttpConnection, url: httpx2.URL) -> None:
        self._client = client
        self._connection = connection
        self._is_closed = False
        self.status = connection.status
        self.reason = connection.reason.decode("ascii", "replace")
        self.headers: dict[str, str] = {}
        for name, value in connection.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self.media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.location: httpx2.URL | None = None
        """Where it redirects to, if it does."""
        if self.status in _REDIRECTS and (location := self.headers.get("location")):
            with contextlib.suppress(httpx2.InvalidURL):
                self.location = url.join(location)

    @property
    def encoding(self) -> str:
        """How the body is compressed, although none was asked for; "" if it is not."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        return "" if encoding == "identity" else encoding

    async def receive(self) -> bytes:
        """Return the next piece of the body; b"" at its end. Raises ConnectionBroken."""
        return await self._connection.receive()

    def close(self) -> None:
        """Give the connection back. It is used again if the body was read to its end."""
        if not self._is_closed:
            self._is_closed = True
            self._client.release(self._connection)

    def close_soon(self) -> None:
        """Give the connection back. It is used again if the rest of the body, which is not read, ends soon."""
        self._is_closed = True
        self._client.release_soon(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class HttpConnection(asyncio.Protocol):
    """A connection to a server, perhaps through a proxy. It carries one request at a time.

    It is a protocol of asyncio, because anyio's streams and a parser written in Python would cost four times as much.
    """

    def __init__(self, origin: HttpOrigin, proxy: httpx2.URL | None = None) -> None:
        """proxy: the one that is told the whole address, as it is for plain HTTP."""
        self.origin = origin
        self.is_proxied = proxy is not None
        self.extra_headers = _proxy_headers(proxy) if proxy is not None else {}
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """Of the response, with lower-case names."""
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._poll = select.poll()
        self._pieces: list[bytes] = []
        """What has come of the body and was not taken yet."""
        self._held = 0
        self._framing = 0
        """Bytes since the last one of a body: a head, sizes of chunks, trailers."""
        self._progress = _Progress.IDLE
        self._ends_with_connection = False
        self._may_be_kept = False
        self._failure: str | None = None
        """Why nothing more can come. Empty: the server has closed the connection."""
        self._waiter: asyncio.Future[None] | None = None
        self._on_end: Callable[[], None] | None = None
        """Called at the end of a response that is discarded."""
        self._idle_since = 0.0

    def __repr__(self) -> str:
        return f"<HttpConnection {self.origin.host}:{self.origin.port} {self._progress.name}>"

    # --- requests and their responses ---------------------------------------------------------------------------------

    async def exchange(self, request: bytes) -> None:
        """Send a request; return when the head of its response is there. Raises ConnectionBroken."""
        self._progress = _Progress.HEAD
        self._transport.write(request)
        while self._progress is _Progress.HEAD:
            await self._wait()

    async def receive(self) -> bytes:
        """Return the next piece of the response's body; b"" at its end. Raises ConnectionBroken."""
        while not self._pieces:
            if self._progress is _Progress.COMPLETE:
                return b""
            await self._wait()
        body = b"".join(self._pieces)
        self._pieces.clear()
        if self._held > _HIGH_WATER_BYTES and self._failure is None:
            self._transport.resume_reading()
        self._held = 0
        return body

    def discard(self, on_end: Callable[[], None]) -> None:
        """Drop the rest of the response; call `on_end` when nothing more of it comes."""
        if self._held > _HIGH_WATER_BYTES and self._failure is None:
            self._transport.resume_reading()
        self._pieces.clear()
        self._held = 0
        self._on_end = on_end
        self._wake()

    async def _wait(self) -> None:
        if self._failure is not None:
            raise ConnectionBroken(self._failure or "the server closed it")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def make_reusable(self) -> bool:
        """Make it ready for the next request; return False if it cannot be."""
        if self._progress is not _Progress.COMPLETE or not self._may_be_kept or self._failure is not None:
            return False
        self._progress = _Progress.IDLE
        self._idle_since = anyio.current_time()
        return not self._pieces

    def has_expired(self) -> bool:
        """Whether an idle connection is too old, or can be read, which means that the server has closed it."""
        is_old = anyio.current_time() - self._idle_since > _IDLE_S
        return is_old or self._failure is not None or bool(self._poll.poll(0))

    def close(self) -> None:
        self._fail("")
        self._transport.abort()

    async def start_tls(self, host: str) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, self, tls_context(), server_hostname=host)
        assert transport is not None
        self._transport = transport
        # What was parsed before is the answer of a proxy.
        self._parser, self._progress = httptools.HttpResponseParser(self), _Progress.IDLE

    # --- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._failure is not None:
            return
        self._framing += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it wants to speak another protocol")
        except httptools.HttpParserError as exc:
            self._fail(str(exc.__context__ or exc))
        if self._framing > _MOST_HEAD_BYTES:
            self._fail(f"it sent {_MOST_HEAD_BYTES} bytes of headers")
        if self._failure is not None:
            self._transport.abort()
        elif self._held > _HIGH_WATER_BYTES:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._fail("")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or ""))
        self._parser = None  # it refers to this connection: without the cycle its memory is free at once

    def _fail(self, reason: str) -> None:
        """Nothing more comes. That is the end of a response which says no length."""
        if self._progress is _Progress.BODY and self._ends_with_connection and not reason:
            self._progress = _Progress.COMPLETE
        if self._failure is None:
            self._failure = reason
        self._wake()

    def _wake(self) -> None:
        if self._on_end is not None and (self._progress is _Progress.COMPLETE or self._failure is not None):
            on_end, self._on_end = self._on_end, None
            on_end()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what the parser calls ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._progress is not _Progress.HEAD:
            raise ValueError("it sent something that no request had asked for")  # which also ends the parsing
        self.status, self.reason, self.headers = 0, b"", []

    def on_status(self, status: bytes) -> None:
        self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._progress is _Progress.HEAD:  # trailers say nothing of interest
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        if self.status >= _LEAST_FINAL_STATUS and self._failure is None:
            self._progress = _Progress.BODY
            framed = {name: value for name, value in self.headers if name in _FRAMING_HEADERS}
            is_chunked = b"chunked" in framed.get(b"transfer-encoding", b"").lower()
            self._ends_with_connection = not is_chunked and b"content-length" not in framed
            self._may_be_kept = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        if self._on_end is None:
            self._pieces.append(body)
            self._held += len(body)

    def on_message_complete(self) -> None:
        if self._progress is _Progress.BODY:
            self._progress = _Progress.COMPLETE
            self._framing = 0


class _Progress(enum.Enum):
    """How much of a response is there. IDLE: none was asked for."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    COMPLETE = "complete"


async def _connect(origin: HttpOrigin) -> HttpConnection:
    """Raises what TCP, TLS and the proxy raise."""
    proxy = _proxy_of(origin)
    first = HttpOrigin.of(proxy) if proxy is not None else origin
    connection = await _open_tcp(first, lambda: HttpConnection(origin, proxy if origin.scheme == "http" else None))
    try:
        if first.scheme == "https":
            await connection.start_tls(first.host)
        if proxy is not None and origin.scheme == "https":
            await _open_tunnel(connection, origin, proxy)
            await connection.start_tls(origin.host)
    except BaseException:
        connection.close()
        raise
    return connection


async def _open_tcp(server: HttpOrigin, make: Callable[[], HttpConnection]) -> HttpConnection:
    """Connect to the first address that answers. Others are tried beside one that is slow (RFC 8305)."""
    loop = asyncio.get_running_loop()
    connected: list[HttpConnection] = []
    errors: list[OSError] = []

    async def attempt(host: str, failed: anyio.Event) -> None:
        try:
            _, connection = await loop.create_connection(make, host, server.port)
        except OSError as exc:
            errors.append(exc)
            failed.set()
        else:
            connected.append(connection)
            tasks.cancel_scope.cancel()

    found = await loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    try:
        async with anyio.create_task_group() as tasks:
            for host in dict.fromkeys(str(address[0]) for *_, address in found):
                failed = anyio.Event()
                tasks.start_soon(attempt, host, failed)
                with anyio.move_on_after(_NEXT_ADDRESS_S):
                    await failed.wait()
    except BaseException:  # cancelled after an attempt has succeeded
        for connection in connected:
            connection.close()
        raise
    for late in connected[1:]:
        late.close()
    if not connected:
        raise OSError("; ".join(map(str, errors)))
    return connected[0]


async def _open_tunnel(tunnel: HttpConnection, origin: HttpOrigin, proxy: httpx2.URL) -> None:
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    target = f"{host}:{origin.port}".encode()
    headers = {b"host": target, **{name.encode(): value.encode() for name, value in _proxy_headers(proxy).items()}}
    try:
        await tunnel.exchange(_request(b"CONNECT", target, headers))
    except ConnectionBroken as exc:
        raise OSError(f"the proxy {proxy.host}:{proxy.port} ended the connection ({exc})") from exc
    if not 200 <= tunnel.status < 300:
        raise OSError(f"the proxy {proxy.host}:{proxy.port} answered with HTTP {tunnel.status}")


def _request(method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes = b"") -> bytes:
    """Return a request as it is sent. Raises ValueError for headers that HTTP does not allow."""
    lines = [method + b" " + target + b" HTTP/1.1"]
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(_BAD_HEADER)
        lines.append(name + b": " + value)
    return b"\r\n".join((*lines, b"", body))


def _proxy_of(origin: HttpOrigin) -> httpx2.URL | None:
    """Return the proxy that the environment names for a server: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY."""
    proxies: Mapping[str, Any] = urllib.request.getproxies()
    named = proxies.get(origin.scheme) or proxies.get("all")
    if not named or urllib.request.proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    proxy = httpx2.URL(named if "://" in named else f"http://{named}")
    if proxy.scheme not in _PORTS:
        raise ValueError(f"the proxy {proxy.scheme}://{proxy.host} is not one of HTTP")
    return proxy


def _proxy_headers(proxy: httpx2.URL) -> dict[str, str]:
    return {"proxy-authorization": _basic(proxy.username, proxy.password)} if proxy.username else {}


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _may_follow(method: str, status: int, url: httpx2.URL, location: httpx2.URL) -> bool:
    """Whether a redirect keeps the request and stays within its origin, or goes to the same host's TLS."""
    if method != "GET" and status not in _KEEPING_METHOD:
        return False
    if location.scheme not in _PORTS or (location.userinfo and location.userinfo != url.userinfo):
        return False
    here, there = HttpOrigin.of(url), HttpOrigin.of(location)
    return here == there or (here == ("http", there.host, 80) and there == ("https", here.host, 443))
