"""The connections of a backend: HTTP/1.1 and HTTP/2, kept and shared by everybody who uses it."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpcore2
import httpx2

from toolhub_servers.web.guard import CLOSE_S, Guard, GuardedBackend
from toolhub_servers.web.settings import WebSettings

_CONNECTION = "toolhub.connection"


class Connection(httpcore2.AsyncHTTPConnection):
    """One that can be retired: it gets no further requests and is closed when those that it has are done.

    Nor does it get a second request before it is open, as httpcore2 would give it one in the hope of HTTP/2: they would
    wait for each other's failures, and a cancelled one would make the pool forget, unclosed, what another is opening.
    """

    is_dropped = False
    _is_retired = False
    _users = 0

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        """Whoever finds its request on this connection afterwards must `release()`."""
        request.extensions[_CONNECTION] = self
        self._users += 1
        try:
            return await super().handle_async_request(request)
        except httpcore2.ConnectionNotAvailable:  # the pool looks for another
            del request.extensions[_CONNECTION]
            self._users -= 1
            raise

    async def release(self) -> None:
        """Close it if it is retired and this was the last: httpcore2 may take it for active for ever."""
        self._users -= 1
        if self._is_retired and not self._users and not self.is_closed():
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self.aclose()

    def retire(self) -> None:
        """For after an answer was not read to its end.

        httpcore2 sends no RST_STREAM: over HTTP/2 the unread rest would fill the window that all streams of the
        connection share, until none of them moves.
        """
        self._is_retired = True

    async def drop(self) -> None:
        """Retire it, and close it at once if others are on it, too: so much is left to come that they would starve.

        They break then, and have to be sent again.
        """
        self.retire()
        if self.can_multiplex():
            self.is_dropped = True
            await self.aclose()

    @property
    def was_open(self) -> bool:
        """Whether it has been there for requests, however it ended."""
        return self._connection is not None

    def is_available(self) -> bool:
        return not self._is_retired and self.is_connected() and super().is_available()

    def has_expired(self) -> bool:
        return (self._is_retired and self.is_idle()) or super().has_expired()


def connection_of(request: httpcore2.Request) -> Connection | None:
    """Return the connection that a request was sent on; None while it waits for one."""
    found = request.extensions.get(_CONNECTION)
    return found if isinstance(found, Connection) else None


class Pool(httpcore2.AsyncConnectionPool):
    """httpcore2's, on connections that can be retired and that are opened by the guard."""

    def __init__(self, settings: WebSettings, backend: GuardedBackend, context: ssl.SSLContext) -> None:
        super().__init__(
            ssl_context=context,
            max_connections=settings.connections,
            max_keepalive_connections=settings.keepalive,
            keepalive_expiry=settings.keepalive_s,
            http2=settings.http2,
            network_backend=backend,
        )
        self._settings = settings
        self.carried = 0
        """Exchanges that had a connection."""
        self.backend = backend
        self.context = context

    def create_connection(self, origin: httpcore2.Origin) -> Connection:
        return Connection(
            origin,
            ssl_context=self.context,
            keepalive_expiry=self._settings.keepalive_s,
            http2=self._settings.http2,
            network_backend=self.backend,
        )


@asynccontextmanager
async def open_pool(
    settings: WebSettings, *, backend: GuardedBackend | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[Pool]:
    """Give a pool. context: what certificates are trusted; the default is the system's, whatever the environment says.

    Proxies of the environment are not used either: they would connect to addresses that nobody has checked.
    """
    backend = backend or GuardedBackend(Guard(settings.allow_private))
    async with Pool(settings, backend, context or _system_trust(settings.http2)) as pool:
        yield pool


@functools.cache
def _system_trust(http2: bool) -> ssl.SSLContext:
    """Read the system's certificates once; apart for HTTP/2, because a connection writes what it speaks into it."""
    return httpx2.create_ssl_context(trust_env=False)
