"""HTTP/1.1 to one server: connections that are kept between requests, and answers that are read as they arrive.

A general client (httpx2) costs half a millisecond of CPU per request, more than all else that a call costs the hub.
This one does what MCP needs: TLS, proxies from the environment, cookies, a user and password in the URL, redirects
within the server's origin. It asks for answers that are not compressed: a few kilobytes of such an answer may stand for
any number of bytes.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import select
import socket
import ssl
import urllib.request
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio
import anyio.abc
import h11
import httpx2
from anyio.streams.tls import TLSStream

from toolhub import __version__

RECEIVE_BYTES = 1 << 16
_MOST_HEAD_BYTES = 100 * 1024
# uvicorn and Node close a connection that was idle for 5 s. A request must not meet that.
_IDLE_S = 4.0
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
        self._connect_timeout = connect_timeout
        self._cookies = httpx2.Cookies()
        self._idle: deque[HttpConnection] = deque()

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
            await response.aclose()
            url = response.location
        return response

    async def _send(self, method: str, headers: Mapping[str, str], body: bytes, url: httpx2.URL) -> HttpResponse:
        connection = await self._connection(HttpOrigin.of(url))
        given = dict(headers) | connection.extra_headers
        if cookies := self._cookies_for(url):
            given["cookie"] = cookies
        if method == "POST":
            given["content-length"] = str(len(body))
        target = url.raw_path if not connection.is_proxied else str(url.copy_with(userinfo=b"", fragment=None)).encode()
        try:
            sent: dict[bytes, bytes] = {b"host": url.netloc, **self._headers}
            sent |= {name.encode("ascii"): value.encode("latin-1") for name, value in given.items()}
            request = h11.Request(method=method, target=target, headers=list(sent.items()))
            head = await connection.exchange(request, body)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            await connection.aclose()
            # Its own text has the value, which may be a secret.
            raise ValueError("a header of the request has characters that HTTP does not allow") from None
        except BaseException:
            await connection.aclose()
            raise
        response = HttpResponse(self, connection, head, url)
        if "set-cookie" in response.headers:
            asked = httpx2.Request(method, url)
            self._cookies.extract_cookies(httpx2.Response(200, headers=head.headers.raw_items(), request=asked))
        return response

    def _cookies_for(self, url: httpx2.URL) -> str | None:
        if not self._cookies.jar:
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
            await connection.aclose()
        try:
            with anyio.fail_after(self._connect_timeout):
                return await _connect(origin)
        except TimeoutError:
            raise ConnectFailed(f"no connection within {self._connect_timeout:g} s") from None
        except (OSError, ValueError, anyio.BrokenResourceError, anyio.EndOfStream, h11.ProtocolError) as exc:
            raise ConnectFailed(str(exc) or type(exc).__name__) from exc

    async def release(self, connection: HttpConnection) -> None:
        """Keep a connection whose response was read to its end, or close it."""
        if len(self._idle) < _MOST_IDLE and connection.make_reusable():
            self._idle.append(connection)
        else:
            await connection.aclose()
        if self._idle and self._idle[0].has_expired():  # those that a burst of requests has opened
            await self._idle.popleft().aclose()

    async def aclose(self) -> None:
        """Close the connections that no response uses."""
        while self._idle:
            await self._idle.pop().aclose()


class HttpResponse:
    """A response whose body is read in pieces. Headers have lower-case names; repeated ones are joined."""

    def __init__(self, client: HttpClient, connection: HttpConnection, head: h11.Response, url: httpx2.URL) -> None:
        self._client = client
        self._connection = connection
        self.status = head.status_code
        self.reason = head.reason.decode("ascii", "replace")
        self.headers: dict[str, str] = {}
        for name, value in head.headers:
            key, text = name.decode("ascii"), value.decode("latin-1")
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
        event = await self._connection.next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def aclose(self) -> None:
        await self._client.release(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class HttpConnection:
    """A connection to a server, perhaps through a proxy, with its protocol state."""

    def __init__(self, stream: anyio.abc.ByteStream, origin: HttpOrigin, proxy: httpx2.URL | None = None) -> None:
        """proxy: the one that is told the whole address, as it is for plain HTTP."""
        self.origin = origin
        self.is_proxied = proxy is not None
        self.extra_headers = _proxy_headers(proxy) if proxy is not None else {}
        self._stream = stream
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD_BYTES)
        self._poll = select.poll()
        connected: socket.socket = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610  # not Django's
        self._poll.register(connected.fileno(), select.POLLIN)
        self._idle_since = 0.0

    async def exchange(self, request: h11.Request, body: bytes) -> h11.Response:
        """Send a request in one piece; return the head of its response. Raises ConnectionBroken."""
        parts = [request, h11.Data(data=body), h11.EndOfMessage()] if body else [request, h11.EndOfMessage()]
        try:
            await self._stream.send(b"".join(self._state.send(part) or b"" for part in parts))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the server stopped reading, perhaps after an answer with the reason
        while not isinstance(event := await self.next_event(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionBroken("the connection ended without an answer")
        return event

    async def next_event(self) -> Any:
        """Return the next event of the response, one of h11's. Raises ConnectionBroken."""
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                try:
                    data = await self._stream.receive(RECEIVE_BYTES)
                except anyio.EndOfStream:
                    data = b""
                self._state.receive_data(data)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError) as exc:
            raise ConnectionBroken(str(exc) or type(exc).__name__) from exc
        return event

    def make_reusable(self) -> bool:
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE:
            return False
        self._state.start_next_cycle()
        self._idle_since = anyio.current_time()
        return True

    def has_expired(self) -> bool:
        """Whether an idle connection is too old, or can be read, which means that the server has closed it."""
        return anyio.current_time() - self._idle_since > _IDLE_S or bool(self._poll.poll(0))

    async def aclose(self) -> None:
        await anyio.aclose_forcefully(self._stream)


async def _connect(origin: HttpOrigin) -> HttpConnection:
    """Raises what TCP, TLS and the proxy raise."""
    proxy = _proxy_of(origin)
    first = HttpOrigin.of(proxy) if proxy is not None else origin
    stream: anyio.abc.ByteStream = await anyio.connect_tcp(first.host, first.port)
    try:
        if first.scheme == "https":
            stream = await _with_tls(stream, first.host)
        if proxy is None or origin.scheme == "http":
            return HttpConnection(stream, origin, proxy)
        await _open_tunnel(stream, origin, proxy)
        return HttpConnection(await _with_tls(stream, origin.host), origin)
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise


async def _with_tls(stream: anyio.abc.ByteStream, host: str) -> anyio.abc.ByteStream:
    return await TLSStream.wrap(stream, hostname=host, ssl_context=tls_context(), standard_compatible=False)


async def _open_tunnel(stream: anyio.abc.ByteStream, origin: HttpOrigin, proxy: httpx2.URL) -> None:
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    target = f"{host}:{origin.port}"
    headers = {"host": target, **_proxy_headers(proxy)}
    tunnel = HttpConnection(stream, origin)
    request = h11.Request(method="CONNECT", target=target, headers=list(headers.items()))
    try:
        response = await tunnel.exchange(request, b"")
    except ConnectionBroken as exc:
        raise OSError(f"the proxy {proxy.host}:{proxy.port} ended the connection ({exc})") from exc
    if not 200 <= response.status_code < 300:
        raise OSError(f"the proxy {proxy.host}:{proxy.port} answered with HTTP {response.status_code}")


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
