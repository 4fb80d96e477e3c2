"""Which requests are being answered, so that a hub that stops can wait for calls, and for nothing else.

A stream that an MCP client holds open for notifications never ends by itself; a call may take longer than anybody wants
to wait. Both are ended here, in order: left to uvicorn they would cost the whole drain time and a traceback each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolhub.errors import HubClosed
from toolhub.wire import error_to_wire, status_of

_STOPPED = HubClosed("the hub was stopped during this request; if it was a call, it may or may not have been executed")


@dataclass(eq=False)
class _Running:
    """One request that is being answered."""

    client: Send
    is_standing: bool
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    has_begun: bool = False

    async def send(self, message: Message) -> None:
        self.has_begun = True
        await self.client(message)

    async def finish(self) -> None:
        """Complete the answer of a request that was cut short."""
        body = b""
        if not self.has_begun:
            body = to_json({"error": error_to_wire(_STOPPED)})
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await self.client({"type": "http.response.start", "status": status_of(_STOPPED), "headers": headers})
        await self.client({"type": "http.response.body", "body": body, "more_body": False})


class Drain:
    """ASGI middleware. standing_path: a GET of it is a stream without an end."""

    def __init__(self, app: ASGIApp, *, standing_path: str) -> None:
        self._app = app
        self._standing_path = standing_path
        self._running: set[_Running] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_standing = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == self._standing_path
        running = _Running(send, is_standing)
        self._running.add(running)
        try:
            with running.scope:
                await self._app(scope, receive, running.send)
        finally:
            self._running.discard(running)
        if running.scope.cancelled_caught:
            await running.finish()

    @property
    def in_flight(self) -> int:
        """Requests that are being answered, without the standing streams."""
        return sum(not running.is_standing for running in self._running)

    def end_streams(self) -> None:
        """End the standing streams; everything else goes on."""
        for running in self._running:
            if running.is_standing:
                running.scope.cancel()

    def end_all(self) -> None:
        """End every request; one that has no answer yet is told that the hub was stopped."""
        for running in self._running:
            running.scope.cancel()
