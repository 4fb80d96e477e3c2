"""What the client gets: heads, bodies, and errors as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import to_json
from starlette.types import Send

from toolhub_agent.door.headers import Raw

# For a status that no client ever sees: it has hung up (nginx's number).
HUNG_UP = 499
# When a client may come again: soon enough to find a free slot, too late for a storm.
RETRY_AFTER_S = 5
_TYPES = {400: "invalid_request_error", 404: "not_found_error", 413: "invalid_request_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """The door itself answers. The message is for the client."""

    def __init__(self, status: int, message: str, *, headers: Sequence[Raw] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = tuple(headers)

    @classmethod
    def for_now(cls, status: int, message: str) -> Refusal:
        return cls(status, message, headers=[(b"retry-after", str(RETRY_AFTER_S).encode())])


def error_body(status: int, message: str) -> bytes:
    error = {"message": message, "type": _TYPES.get(status, "toolhub_llm_door_error"), "param": None, "code": status}
    return to_json({"error": error})


class Reply:
    """One answer. status: 0 until it began."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.is_complete = False

    async def start(self, status: int, headers: Sequence[Raw]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def body(self, content: bytes, *, more: bool) -> None:
        self.is_complete = not more
        await self._send({"type": "http.response.body", "body": content, "more_body": more})

    async def whole(self, status: int, headers: Sequence[Raw], content: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(content)).encode())])
        await self.body(content, more=False)

    async def refuse(self, refusal: Refusal) -> None:
        headers = [(b"content-type", b"application/json"), *refusal.headers]
        await self.whole(refusal.status, headers, error_body(refusal.status, str(refusal)))

    async def break_off(self, status: int, message: str) -> None:
        """End a stream that cannot go on in a way that clients of this API take for an error."""
        event = b"data: " + error_body(status, message) + b"\n\n"
        await self.body(event, more=False)
