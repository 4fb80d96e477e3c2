"""One request at one endpoint, from sending it to its last chunk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import anyio

from toolhub_agent.llm.failures import AttemptFailed
from toolhub_agent.llm.parts import AnswerReader
from toolhub_agent.llm.slots import Slot
from toolhub_agent.model import Delta, Json

# For closing a connection in the middle of an answer; it is local work.
CLOSE_S = 1.0


class Chunks(Protocol):
    """An open stream."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def next(self) -> Any: ...

    async def aclose(self) -> None: ...


class Sender(Protocol):
    """Sends to one endpoint; raises AttemptFailed for everything that goes wrong."""

    async def open(self, body: Json, headers: Mapping[str, str]) -> Chunks: ...

    async def ask(self, body: Json, headers: Mapping[str, str]) -> Any: ...

    async def models(self) -> list[str]: ...


class Attempt:
    """Holds its slot until `aclose`. Times are on the anyio clock."""

    def __init__(self, slot: Slot, send: Callable[[], Awaitable[Chunks]], *, timeout: float, deadline: float) -> None:
        """send: sends the request. timeout: for all of it. deadline: the turn's."""
        self.reader = AnswerReader()
        self.sent_at = anyio.current_time()
        self.first_at: float | None = None
        self.headers: Mapping[str, str] = {}
        self._slot = slot
        self._send = send
        self._deadline = min(deadline, self.sent_at + timeout)
        self._chunks: Chunks | None = None

    def __repr__(self) -> str:
        return f"<Attempt at {self.endpoint}, {self.reader!r}>"

    @property
    def endpoint(self) -> str:
        return self._slot.endpoint

    async def next(self) -> Delta | None:
        """Return the next piece, None at the end. Raises AttemptFailed, AnswerUnreadable."""
        with anyio.move_on_at(self._deadline):
            return await self._next()
        waited = anyio.current_time() - self.sent_at
        what = "no answer" if self.first_at is None else "no end of the answer"
        raise AttemptFailed(f"{what} within {waited:.1f} s")

    async def _next(self) -> Delta | None:
        if self._chunks is None:
            self._chunks = await self._send()
            self.headers = self._chunks.headers
        while (chunk := await self._chunks.next()) is not None:
            delta = self.reader.feed(chunk)
            if delta is not None:
                if self.first_at is None:
                    self.first_at = anyio.current_time()
                return delta
        self.reader.finish()
        return None

    async def aclose(self) -> None:
        """Close the connection, so that the engine stops, and only then give the slot back."""
        try:
            if self._chunks is not None:
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await self._chunks.aclose()
        finally:
            self._slot.release()
