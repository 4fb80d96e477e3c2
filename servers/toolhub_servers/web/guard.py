"""Connect to the public internet only. The check is made on the very address that is connected to.

Checking a URL and connecting later would resolve the name twice, and the two results may differ (DNS rebinding). So the
pool opens every connection through this backend, also after redirects. It resolves the name once, drops the addresses
that are not public, and connects to one of the rest. TLS still verifies the name.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, NoReturn

import anyio
import httpcore2
from toolhub_sandbox.proxy.machine import is_own_address
from toolhub_sandbox.proxy.rules import IPAddress, Rule, Target, is_public, parse_authority

from toolhub_servers.web.errors import Forbidden
from toolhub_servers.web.request import parse_url, port_of

# Used where the caller has no deadline. Longer than a kernel tries.
_LONGEST_S = 300.0
# Closing a socket takes no time. This bounds a shield.
CLOSE_S = 1.0
# A name that takes longer to resolve is not judged.
LOOK_UP_S = 5.0

Resolve = Callable[[str, int], Awaitable[list[IPAddress]]]


class Guard:
    """Decides which addresses of a host may be reached. resolve: resolves names; tests pass their own."""

    def __init__(
        self,
        allow_private: Sequence[str] = (),
        *,
        resolve: Resolve | None = None,
        is_own: Callable[[IPAddress], bool] = is_own_address,
    ) -> None:
        """allow_private: see `WebSettings.allow_private`. is_own: tells whether an address is this machine's.

        Raises ValueError.
        """
        self._is_own = is_own
        self._allowed = tuple(Rule.of(host) for host in allow_private)
        self._resolve = resolve or _resolve

    async def addresses(self, host: str, port: int) -> list[IPAddress]:
        """Return the addresses that may be connected to; none if the name has none. Raises Forbidden, OSError."""
        target, found, private = await self._look_up(host, port)
        public = [address for address in found if address not in private]
        if private and not public:
            raise _refusal(target, private[0])
        return public

    async def check_all(self, host: str, port: int) -> None:
        """Check a host that another service will connect to. Raises Forbidden if one address is private, OSError."""
        target, _, private = await self._look_up(host, port)
        if private:
            raise _refusal(target, private[0])

    async def _look_up(self, host: str, port: int) -> tuple[Target, list[IPAddress], list[IPAddress]]:
        """Return the host, its addresses, and those that are neither public nor allowed."""
        target = _target(host, port)
        found = [target.address] if target.address is not None else await self._resolve(target.host, port)
        is_allowed = any(rule.admits(target) for rule in self._allowed)
        return target, found, [] if is_allowed else [address for address in found if self._is_private(address)]

    def _is_private(self, address: IPAddress) -> bool:
        """Whether an address is public. This machine's own are not: programs there may trust local connections."""
        return not is_public(address) or self._is_own(address)


async def check_all_public(url: str, allow_private: Sequence[str] = ()) -> None:
    """Check a URL that another service will fetch, perhaps from inside this private network.

    Raises Forbidden if any address is private, because the other service chooses the address. A name that cannot be
    resolved here, or not soon enough, is not judged.
    """
    target = parse_url(url)
    host, port = target.raw_host.decode(), port_of(target)
    with anyio.move_on_after(LOOK_UP_S):
        try:
            await Guard(allow_private).check_all(host, port)
        except OSError:
            pass


def _refusal(target: Target, address: IPAddress) -> Forbidden:
    return Forbidden(f"{target} leads to {address}, which is not public; web.allow_private may list {target}")


def _target(host: str, port: int) -> Target:
    try:
        return parse_authority(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ValueError as exc:
        raise Forbidden(f"{host[:100]!r} is not a host that can be reached: {exc}") from exc


async def _resolve(host: str, port: int) -> list[IPAddress]:
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(address[0]) for *_, address in found))


class _TcpStream(httpcore2.AsyncNetworkStream):
    """A connection before TLS. httpcore2 would leave it open when a handshake is cancelled."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Opens the pool's connections and counts them in `opened`. inner: connects to a checked address."""

    def __init__(self, guard: Guard, *, inner: httpcore2.AsyncNetworkBackend | None = None) -> None:
        self._guard = guard
        self._inner = inner or httpcore2.AnyIOBackend()
        self.opened = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return a stream to the first allowed address that answers. Raises Forbidden, ConnectError, ConnectTimeout."""
        try:
            with anyio.fail_after(timeout):
                addresses = await self._guard.addresses(host, port)
                return await self._connect(addresses, port, local_address, socket_options)
        except TimeoutError as exc:
            raise httpcore2.ConnectTimeout("the connection took too long") from exc
        except OSError as exc:
            raise httpcore2.ConnectError(str(exc)) from exc

    async def _connect(
        self, addresses: Sequence[IPAddress], port: int, local_address: str | None, options: Iterable[Any] | None
    ) -> httpcore2.AsyncNetworkStream:
        deadline = anyio.current_effective_deadline()
        failure: Exception = httpcore2.ConnectError("the name has no address")
        for number, address in enumerate(addresses):
            # An address that hangs must leave time for the others.
            share = min((deadline - anyio.current_time()) / (len(addresses) - number), _LONGEST_S)
            try:
                stream = await self._inner.connect_tcp(str(address), port, share, local_address, options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                failure = exc
            else:
                self.opened += 1
                return _TcpStream(stream)
        raise failure

    async def connect_unix_socket(self, *args: Any, **options: Any) -> NoReturn:
        raise Forbidden("a unix socket is not part of the web")

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
