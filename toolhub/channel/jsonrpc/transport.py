"""The interface between a `Peer` and its transport. Messages are plain dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from toolhub.model import Json


class MessageSource(Protocol):
    """Where messages come from."""

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        """Hand every message to `take`, in order, until the other side ends.

        `take` returns False for what is not JSON-RPC.
        """
        ...


class MessageSink(Protocol):
    """Where messages go to."""

    @property
    def is_full(self) -> bool:
        """Whether the other side has stopped reading. New requests then wait; answers and notices are still sent."""
        ...

    async def wait_room(self) -> None:
        """Return when the other side has read something or the sink was closed. Callers check `is_full` again."""
        ...

    def send(self, message: Json) -> None:
        """Send without waiting. The caller may change the message afterwards.

        Raises BrokenResourceError when the other side is gone, ValueError for what is not JSON.
        """
        ...

    def close(self) -> None:
        """Stop sending, and wake everyone who waits for room."""
        ...
