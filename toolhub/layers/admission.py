"""Bounded concurrency with a bounded queue: what cannot be taken in is refused at once, not left to rot.

A `Gate` is first come, first served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from toolhub.errors import Overloaded
from toolhub.layers import Handler, Layer
from toolhub.model import Call, Result


class Gate:
    """Lets `limit` callers in at once and keeps at most `queue` waiting."""

    def __init__(self, name: str, limit: int, queue: int) -> None:
        self.name = name
        self._limiter = anyio.CapacityLimiter(limit)
        self._queue = queue

    def __repr__(self) -> str:
        return f"<Gate {self.name} {self.in_use}/{self.limit} waiting={self.waiting}>"

    @property
    def limit(self) -> int:
        return int(self._limiter.total_tokens)

    @property
    def in_use(self) -> int:
        return self._limiter.borrowed_tokens

    @property
    def waiting(self) -> int:
        return self._limiter.statistics().tasks_waiting

    @asynccontextmanager
    async def enter(self, call: Call) -> AsyncIterator[None]:
        """Wait for a place and keep it. Raises Overloaded when the queue is full."""
        ticket = object()
        try:
            self._limiter.acquire_on_behalf_of_nowait(ticket)
        except anyio.WouldBlock:
            if self.waiting >= self._queue:
                raise Overloaded(
                    f"{self.name} is full: {self.in_use} calls run and {self.waiting} wait (limit {self.limit}, "
                    f"queue {self._queue}); come back later or raise the limit",
                    call_id=call.id,
                    server=call.server,
                    tool=call.tool,
                ) from None
            await self._limiter.acquire_on_behalf_of(ticket)
        try:
            yield
        finally:
            self._limiter.release_on_behalf_of(ticket)


def admission(hub: Gate, server_gate: Callable[[Call], Gate]) -> Layer:
    """Take a place at the call's server, then in the hub: always in this order, so that no two calls can deadlock."""

    def layer(inner: Handler) -> Handler:
        async def handle(call: Call) -> Result:
            async with server_gate(call).enter(call), hub.enter(call):
                return await inner(call)

        return handle

    return layer
