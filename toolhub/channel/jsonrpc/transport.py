"""The two ends of a wire that carries JSON-RPC messages as plain dicts: what a `Peer` needs of a transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from toolhub.model import Json


class MessageSource(Protocol):
    """Where messages come from."""

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        """Give every message to `take`, in the order sent, until the other side ends; False: it was no JSON-RPC."""
        ...


class MessageSink(Protocol):
    """Where messages go to."""

    @property
    def is_full(self) -> bool:
        """Whether the other side has stopped reading: requests then wait, everything else is still sent."""
        ...

    async def wait_room(self) -> None:
        """Return when something was read, or when the sink was closed; whoever waited looks at `is_full` again."""
        ...

    def send(self, message: Json) -> None:
        """Send without waiting. Raises BrokenResourceError when the other side is gone, ValueError for what is no JSON.

        The message is its sender's, who may change it afterwards.
        """
        ...

    def close(self) -> None:
        """Nothing more will be sent, and nobody waits for room any longer."""
        ...
