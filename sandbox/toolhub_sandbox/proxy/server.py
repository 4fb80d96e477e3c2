"""The HTTP proxy through which a sandbox without a network reaches the hosts of its profile, and nothing else.

A connection goes through four steps: read the head; check the target against the rules; resolve its name and check the
address (a name must lead to the public internet, and not back to this machine); connect to that same address (a second
lookup could give another one). Each step can end the connection with an answer that says why. After that the proxy
moves bytes both ways until both sides have ended. It serves `CONNECT host:port` and
`GET http://host/...`, one request for each connection. Bytes after a head go only to the upstream that
was checked. Bytes after a whole request are dropped.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address

import anyio
import anyio.lowlevel

from toolhub_sandbox.proxy import machine
from toolhub_sandbox.proxy.request import HEAD_END, UNBOUNDED, BadRequest, Request, check_bytes, parse_request
from toolhub_sandbox.proxy.rules import AllowRules, IPAddress, Target

logger = logging.getLogger("toolhub_sandbox.proxy")

Resolve = Callable[[str, int], Awaitable[Sequence[IPAddress]]]

# What nginx and Apache take by default is 8 KiB; cookies and signed URLs need more now and then.
HEAD_BYTES = 16 << 10
# A program sends its head at once. A slower one would hold one of the few connections.
HEAD_S = 10.0
# The lookup and every attempt together: a SYN that is lost three times in a row arrives after 7 s.
CONNECT_S = 15.0
# A long poll or a slow model answers within minutes. A longer silence means that the connection was forgotten.
IDLE_S = 300.0
# Closing with unread bytes resets the connection, and the client would never read the answer (RFC 9112, 9.6).
LINGER_S = 2.0
# With two buffers each this bounds a sandbox to 4 MiB; the others wait in the listen queue.
CONNECTIONS = 32
BUFFER_BYTES = 64 << 10
# Bounds the memory for logged names: a program can invent any number.
_NAMES_LOGGED = 256
_ADDRESSES_TRIED = 8


class Refusal(Exception):
    """End the connection with this answer. The text tells the program in the sandbox what is wrong and what to do."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = " ".join(text.split())  # one line, whoever wrote the reason

    @property
    def answer(self) -> bytes:
        # The text is the reason phrase, too: most clients show nothing else of a refused CONNECT.
        head = f"HTTP/1.1 {self.status.value} {self.text}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        body = f"{self.text}\n"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode("ascii", "replace")


async def resolve_by_system(host: str, port: int) -> Sequence[IPAddress]:
    """Resolve a host with the machine's resolver. Raises OSError."""
    found = await anyio.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return [ip_address(sockaddr[0]) for *_, sockaddr in found]


async def run_proxy(
    listener: socket.socket,
    rules: AllowRules,
    *,
    resolve: Resolve = resolve_by_system,
    is_own: Callable[[IPAddress], bool] = machine.is_own_address,
    hub_ports: Callable[[], Collection[int]] = machine.listening_ports,
) -> None:
    """Serve a listening socket until cancelled; then every connection and the listener are closed.

    listener: owned from here on. It may live in another network namespace; upstreams are reached from this process's.
    resolve: looks up names, once for each request that the rules admit, never for an IP address.
    is_own: whether an address is this machine's. hub_ports: the ports of this machine that no list can open.
    Raises a group with an OSError if the listener cannot accept at all; an error of one connection ends only that one.
    """
    proxy = _Proxy(rules, resolve, is_own, hub_ports)
    free_connections = anyio.Semaphore(CONNECTIONS)

    async def serve(client: socket.socket) -> None:
        with client:
            try:
                await proxy.serve(client)
            except OSError:
                pass  # the client has gone away
            except Exception:
                logger.exception("a connection of the sandbox proxy failed")
            finally:
                free_connections.release()

    with listener:
        listener.setblocking(False)
        async with anyio.create_task_group() as connections:
            while True:
                await free_connections.acquire()
                connections.start_soon(serve, await accept(listener))


class _Proxy:
    """What the connections of one sandbox share."""

    def __init__(
        self,
        rules: AllowRules,
        resolve: Resolve,
        is_own: Callable[[IPAddress], bool],
        hub_ports: Callable[[], Collection[int]],
    ) -> None:
        self._rules = rules
        self._resolve = resolve
        self._is_own = is_own
        self._hub_ports = hub_ports
        self._logged: set[str] = set()

    async def serve(self, client: socket.socket) -> None:
        """Serve one connection. Raises OSError when the client has gone away."""
        try:
            received = await self._read_head(client)
            if received is None:
                return
            head, rest = received
            request = self._parse(head)
            upstream = await self._open(request.target)
        except Refusal as refusal:
            await send(client, refusal.answer)
            send_end(client)
            await _discard(client)
            return
        with upstream:
            await _relay(client, upstream, request, rest)

    async def _read_head(self, client: socket.socket) -> tuple[bytes, bytes] | None:
        """Return the head and what came after it; None if the client leaves before it has sent one."""
        received = bytearray()
        with anyio.move_on_after(HEAD_S):
            while len(received) < HEAD_BYTES:
                data = await receive(client, HEAD_BYTES - len(received))
                if not data:
                    return None
                received += data
                end = received.find(HEAD_END)
                self._check(received if end < 0 else received[:end])
                if end >= 0:
                    end += len(HEAD_END)
                    return bytes(received[:end]), bytes(received[end:])
            raise self._bad(f"the head is longer than {HEAD_BYTES} bytes")
        text = f"the head of the request did not arrive within {HEAD_S:g} s"
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, text)

    def _check(self, received: bytearray) -> None:
        try:
            check_bytes(received)
        except BadRequest as exc:
            raise self._bad(str(exc)) from exc

    def _parse(self, head: bytes) -> Request:
        try:
            return parse_request(head)
        except BadRequest as exc:
            raise self._bad(str(exc)) from exc

    def _bad(self, reason: str) -> Refusal:
        return Refusal(HTTPStatus.BAD_REQUEST, f"bad proxy request: {reason}; {self._rules.key} lists the hosts")

    async def _open(self, target: Target) -> socket.socket:
        """Return a connection to an admitted target at an admitted address. Raises Refusal."""
        if not self._rules.admits(target):
            raise self._forbidden(target, f"is not in {self._rules.key}")
        try:
            deadline = anyio.current_time() + CONNECT_S
            with anyio.fail_after(CONNECT_S):
                addresses = await self._addresses(target)
                return await connect(addresses, target.port, deadline=deadline)
        except TimeoutError as exc:
            raise Refusal(HTTPStatus.GATEWAY_TIMEOUT, f"{target} did not answer within {CONNECT_S:g} s") from exc
        except OSError as exc:
            raise Refusal(HTTPStatus.BAD_GATEWAY, f"{target} cannot be reached: {exc.strerror or exc}") from exc

    async def _addresses(self, target: Target) -> Sequence[IPAddress]:
        if target.address is not None:
            self._check_own(target, [target.address])
            return [target.address]
        found = dict.fromkeys(await self._resolve(target.host, target.port))
        admitted = [address for address in found if self._rules.admits_address(target, address)]
        if found and not admitted:
            raise self._forbidden(
                target, f"has no public address; {self._rules.key} must list a local service by its IP address"
            )
        self._check_own(target, admitted)
        return admitted[:_ADDRESSES_TRIED]

    def _check_own(self, target: Target, addresses: Sequence[IPAddress]) -> None:
        """Refuse addresses of this machine unless the list names one, and the hub's own ports in any case."""
        if not any(map(self._is_own, addresses)):
            return
        if not self._rules.means_local(target):
            key = self._rules.key
            raise self._forbidden(target, f"is this machine; {key} must list a local service by its IP address")
        if target.port in self._hub_ports():
            raise self._forbidden(target, "is the hub itself, which no list can open to a sandbox")

    def _forbidden(self, target: Target, reason: str) -> Refusal:
        if target.host not in self._logged and len(self._logged) < _NAMES_LOGGED:
            self._logged.add(target.host)
            more = " (more will not be logged)" if len(self._logged) == _NAMES_LOGGED else ""
            logger.info("the sandbox proxy refused a connection: %s %s%s", target, reason, more)
        return Refusal(HTTPStatus.FORBIDDEN, f"{target} {reason}")


async def _relay(client: socket.socket, upstream: socket.socket, request: Request, rest: bytes) -> None:
    """Move bytes both ways until both sides have ended, or for one answer."""
    if request.is_tunnel:
        await send(client, b"HTTP/1.1 200 Connection established\r\n\r\n")
    with anyio.move_on_after(IDLE_S) as scope:
        async with anyio.create_task_group() as directions:
            directions.start_soon(_pump, client, upstream, scope, request.head + rest, request.size_bytes)
            await _pump(upstream, client, scope)
            if not request.is_tunnel:  # the answer is complete: nothing reads what the client still sends
                directions.cancel_scope.cancel()
    if scope.cancel_called:
        make_close_a_reset(client)
        make_close_a_reset(upstream)
    elif not request.is_tunnel:
        await _discard(client)


async def _pump(
    source: socket.socket, sink: socket.socket, scope: anyio.CancelScope, data: bytes = b"", limit: int = UNBOUNDED
) -> None:
    """Move bytes one way, one buffer at a time, and pass the end on. Movement in either direction puts off `scope`.

    data: goes before what the source gives. limit: what is more than this many bytes is read and thrown away.
    A source that was reset cancels the scope. A sink that is gone ends this direction only: it may have answered
    before it left, and that is still to be read.
    """
    try:
        await send(sink, data[:limit])
        left = limit - len(data)
        while data := await _receive(source, scope):
            await send(sink, data[: max(left, 0)])
            left -= len(data)
            scope.deadline = anyio.current_time() + IDLE_S
    except OSError:
        return
    send_end(sink)


async def _receive(source: socket.socket, scope: anyio.CancelScope) -> bytes:
    try:
        return await receive(source, BUFFER_BYTES)
    except OSError:
        scope.cancel()
        raise


async def _discard(client: socket.socket) -> None:
    """Read until the client has ended too, for at most LINGER_S."""
    with anyio.move_on_after(LINGER_S):
        while await receive(client, BUFFER_BYTES):
            pass


# --- non-blocking sockets, on either of anyio's event loops -----------------------------------------------------------

# Out of descriptors or memory: accepting again at once would only use CPU until others close something.
_ACCEPT_PAUSE_S = 0.1
_LISTENER_IS_UNUSABLE = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})


async def accept(listener: socket.socket) -> socket.socket:
    """Return the next connection. Raises OSError only if the listening socket itself is broken."""
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            await anyio.wait_readable(listener)
        except OSError as exc:
            if exc.errno in _LISTENER_IS_UNUSABLE:
                raise
            await anyio.sleep(_ACCEPT_PAUSE_S)
        else:  # No await here: a cancellation would leak the connection.
            return _prepared(connection)


async def connect(addresses: Sequence[IPAddress], port: int, *, deadline: float) -> socket.socket:
    """Connect to the first address that answers; each may take its share of the time left.

    Raises what the last one failed with: TimeoutError or another OSError.
    """
    failure = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for number, address in enumerate(addresses):
        share = (deadline - anyio.current_time()) / (len(addresses) - number)
        try:
            with anyio.fail_after(share):
                return await _connect(address, port)
        except OSError as exc:
            failure = exc
    raise failure


async def _connect(address: IPAddress, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = _prepared(socket.socket(family, socket.SOCK_STREAM))
    try:
        try:
            connection.connect((str(address), port))
        except BlockingIOError:
            await anyio.wait_writable(connection)
            if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _prepared(connection: socket.socket) -> socket.socket:
    connection.setblocking(False)
    with suppress(OSError):  # this only affects speed
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


async def receive(source: socket.socket, size: int) -> bytes:
    """Return up to `size` bytes, nothing at the end. Raises OSError if the other side has reset the connection."""
    await anyio.lowlevel.checkpoint()  # a fast transfer would otherwise keep every other task from running
    while True:
        try:
            return source.recv(size)
        except BlockingIOError:
            await anyio.wait_readable(source)


async def send(sink: socket.socket, data: bytes) -> None:
    """Send all data, as fast as the other side takes it. Raises OSError if that has gone."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sink.send(rest) :]
        except BlockingIOError:
            await anyio.wait_writable(sink)


def send_end(sink: socket.socket) -> None:
    """Say that nothing more will be sent; the other side may still send."""
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has gone


def make_close_a_reset(connection: socket.socket) -> None:
    """Reset on close, so that the other side does not take a cut transfer for a complete one."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
