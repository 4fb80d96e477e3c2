"""A transport inside this process: what one end sends, the other end receives at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from pydantic_core import to_jsonable_python

from toolhub.model import Json


class InProcessTransport:
    """One end: source and sink of a `Peer`. Get a pair from `in_process_pair()`."""

    is_full = False

    def __init__(self, *, copies: bool) -> None:
        self.other: InProcessTransport
        self._copies = copies
        self._take: Callable[[Any], bool] | None = None
        self._early: list[Json] = []
        self._is_over = anyio.Event()

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        """See `peer.MessageSource`; returns when the other end was closed."""
        self._take = take
        try:
            for message in self._early:
                take(message)
            await self._is_over.wait()
        finally:
            self._is_over.set()

    def send(self, message: Json, headers: Mapping[str, str] | None = None) -> None:
        """See `peer.MessageSink`. Messages sent before the other end receives are kept for it."""
        other = self.other
        if other._is_over.is_set():
            raise anyio.BrokenResourceError
        if self._copies:
            message = to_jsonable_python(message, inf_nan_mode="null")
        if other._take is None:
            other._early.append(message)
        else:
            other._take(message)

    async def wait_room(self) -> None:
        """There is always room."""

    def close(self) -> None:
        self.other._is_over.set()


def in_process_pair() -> tuple[InProcessTransport, InProcessTransport]:
    """Return (the client's end, the server's end).

    What the client sends is copied, as JSON would copy it, because its caller may change the arguments later. What the
    server sends was made for this message by the SDK, and is not copied.
    """
    client, server = InProcessTransport(copies=True), InProcessTransport(copies=False)
    client.other, server.other = server, client
    return client, server
