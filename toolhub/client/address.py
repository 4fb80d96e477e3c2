"""The address of a hub, and connecting to it."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio

from toolhub.errors import ConfigError, HubUnreachable

DEFAULT_PORT = 8765
# The hub is on this machine or near it. One that has not accepted after this hangs.
CONNECT_S = 10.0
# A unix socket with a full backlog refuses a non-blocking client at once, so the client tries again after this.
_BACKLOG_PAUSE_S = 0.01
# anyio 4.7 renamed these two functions.
wait_readable = getattr(anyio, "wait_readable", None) or anyio.wait_socket_readable
wait_writable = getattr(anyio, "wait_writable", None) or anyio.wait_socket_writable
_LOCAL_NAMES = frozenset({"localhost", "::1"})
_FORMS = "write http://host:port, unix:///path/to/hub.sock, or a path ending in .sock"


@dataclass(frozen=True, slots=True)
class Address:
    """The path of a unix socket, or a host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse an address. Raises ConfigError."""
        if url.startswith("unix://"):
            return cls(path=_full_path(url.removeprefix("unix://"), url))
        if "://" not in url and url.endswith(".sock"):
            return cls(path=_full_path(url, url))
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise ConfigError(f"cannot read the hub's address {url!r} ({exc}); {_FORMS}") from exc
        if parts.scheme != "http" or not host or parts.path not in ("", "/"):
            raise ConfigError(f"cannot read the hub's address {url!r}; {_FORMS}")
        return cls(host=host, port=port or DEFAULT_PORT)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"http://{self.authority}"

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the hub sees the same files as this process."""
        return bool(self.path) or self.host in _LOCAL_NAMES or self.host.startswith("127.")

    def unreachable(self, exc: Exception) -> HubUnreachable:
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        return HubUnreachable(
            f"no hub answers at {self} ({reason}); start one with `toolhub serve`, or correct the address"
        )

    async def connect(self) -> socket.socket:
        """Return a connected, non-blocking socket. Raises HubUnreachable."""
        try:
            with anyio.fail_after(CONNECT_S):
                return await self._connect()
        except (OSError, TimeoutError) as exc:
            raise self.unreachable(exc) from exc

    async def _connect(self) -> socket.socket:
        if self.path:
            return await _connected(socket.AF_UNIX, self.path)
        failure: OSError | None = None
        for family, _, _, _, target in await anyio.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            try:
                return _tuned(await _connected(family, target))
            except OSError as exc:
                failure = exc
        raise failure or OSError(errno.EADDRNOTAVAIL, "the name has no address")

    def connect_blocking(self, timeout: float) -> socket.socket:
        """Like `connect()`, for threads without an event loop. Returns a blocking socket. Raises HubUnreachable."""
        try:
            if self.path:
                return _connect_unix(self.path, timeout)
            return socket.create_connection((self.host, self.port), timeout=timeout)
        except OSError as exc:
            raise self.unreachable(exc) from exc


def _full_path(path: str, url: str) -> str:
    if not path:
        raise ConfigError(f"the hub's address {url!r} has no path; {_FORMS}")
    return os.path.abspath(os.path.expanduser(path))


async def _connected(family: int, target: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # The kernel does not report when the backlog has room again, so this tries repeatedly.
        while (code := sock.connect_ex(target)) == errno.EAGAIN:
            await anyio.sleep(_BACKLOG_PAUSE_S)
        if code == errno.EINPROGRESS:
            await wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _tuned(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Detects a machine that vanished. Without it a call without a timeout would wait for ever.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def _connect_unix(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
