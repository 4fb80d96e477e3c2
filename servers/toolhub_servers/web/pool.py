"""The connections of a backend, HTTP/1.1 and HTTP/2, kept and shared by all its users."""

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
    """A connection that can be retired: it gets no further requests and is closed when its last one is done.

    It also gets no second request before it is open. httpcore2 would send one, hoping for HTTP/2. The two would wait
    for each other's failures, and a cancelled one would make the pool forget, unclosed, the connection that the other
    opens.
    """

    is_dropped = False
    _is_retired = False
    _users = 0

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        """Send a request. The caller must `release()` the connection that it finds in the request's extensions."""
        request.extensions[_CONNECTION] = self
        self._users += 1
        try:
            return await super().handle_async_request(request)
        except httpcore2.ConnectionNotAvailable:  # the pool looks for another
            del request.extensions[_CONNECTION]
            self._users -= 1
            raise

    async def release(self) -> None:
        """Close the connection if it is retired and this was its last request; httpcore2 might never close it."""
        self._users -= 1
        if self._is_retired and not self._users and not self.is_closed():
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self.aclose()

    def retire(self) -> None:
        """Retire the connection after an answer that was not read to its end.

        httpcore2 sends no RST_STREAM. Over HTTP/2 the unread rest would fill the window that all streams of the
        connection share, and no stream could go on.
        """
        self._is_retired = True

    async def drop(self) -> None:
        """Retire the connection, and close it at once if it has other requests: the unread rest would block them.

        They fail then, and have to be sent again.
        """
        self.retire()
        if self.can_multiplex():
            self.is_dropped = True
            await self.aclose()

    @property
    def was_open(self) -> bool:
        """Whether it was ever open for requests."""
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
    """The pool of httpcore2, with connections that can be retired and that the guard opens."""

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
        """The number of exchanges that had a connection."""
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
    """Open a pool. context: the trusted certificates; default: those of the system, whatever the environment says.

    Proxies of the environment are not used: they would connect to addresses that are not checked.
    """
    backend = backend or GuardedBackend(Guard(settings.allow_private))
    async with Pool(settings, backend, context or _system_trust(settings.http2)) as pool:
        yield pool


@functools.cache
def _system_trust(http2: bool) -> ssl.SSLContext:
    """Read the system's certificates once; separately for HTTP/2, because connections write into the context."""
    return httpx2.create_ssl_context(trust_env=False)
