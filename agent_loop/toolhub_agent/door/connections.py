"""Connections to one endpoint, kept for the next request.

Per streamed request (Python 3.11, 2 cores, CPU time): httpx2.AsyncClient 418 us, httpcore2.AsyncConnectionPool 320 us,
one of its connections alone, with joined writes as here, 220 us. The pool also looks at each idle connection at every
request; here only the one that was used last is looked at, and the oldest once the answer is out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import httpcore2

# For closing a connection in the middle of an answer; it is local work.
CLOSE_S = 1.0


class Connections:
    """See the module's text. A connection belongs to one request at a time."""

    def __init__(self, connect: Callable[[], httpcore2.AsyncConnectionInterface], *, most: int, most_idle: int) -> None:
        """connect: makes one that is not open yet. most: at once; whoever is above it waits."""
        self._connect = connect
        self._most_idle = most_idle
        self._room = anyio.Semaphore(most, fast_acquire=True)
        self._idle: deque[httpcore2.AsyncConnectionInterface] = deque()

    def __repr__(self) -> str:
        return f"<Connections {len(self._idle)} idle>"

    @asynccontextmanager
    async def send(self, request: httpcore2.Request) -> AsyncIterator[httpcore2.Response]:
        """The answer's head; its body is to be read within the block, which left early ends the connection.

        Raises httpcore2's errors.
        """
        async with self._room:
            connection = await self._take()
            try:
                response = await connection.handle_async_request(request)
                try:
                    yield response
                finally:
                    with anyio.move_on_after(CLOSE_S, shield=True):
                        await response.aclose()
            finally:
                await self._give_back(connection)

    async def aclose(self) -> None:
        """Close the idle ones."""
        while self._idle:
            await _close(self._idle.pop())

    async def _take(self) -> httpcore2.AsyncConnectionInterface:
        """The one that was used last: those that are not needed grow old and go."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await _close(connection)
        return self._connect()

    async def _give_back(self, connection: httpcore2.AsyncConnectionInterface) -> None:
        if not connection.is_idle():
            await _close(connection)
            return
        self._idle.append(connection)
        while len(self._idle) > self._most_idle or self._idle[0].has_expired():
            await _close(self._idle.popleft())
            if not self._idle:
                return


async def _close(connection: httpcore2.AsyncConnectionInterface) -> None:
    if not connection.is_closed():
        with anyio.move_on_after(CLOSE_S, shield=True):
            await connection.aclose()
