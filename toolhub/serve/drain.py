"""Count the requests that are being answered, so that a stopping hub can wait for calls.

A stream that an MCP client holds open for notifications never ends by itself. A call may take longer than the drain
time. This middleware ends both, in this order. uvicorn alone would wait the whole drain time and log a traceback for
each.
"""

from __future__ import annotations

from collections.abc import Collection
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
    is_stream: bool
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    has_begun: bool = False
    is_complete: bool = False

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on. What another task still writes after the end is dropped."""
        if self.is_complete:
            return
        self.has_begun = True
        self.is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self.client(message)

    async def finish(self) -> None:
        """Complete the answer of a request that was cancelled."""
        if self.is_complete:
            return
        self.is_complete = True
        body = b""
        if not self.has_begun:
            body = to_json({"error": error_to_wire(_STOPPED)})
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await self.client({"type": "http.response.start", "status": status_of(_STOPPED), "headers": headers})
        await self.client({"type": "http.response.body", "body": body, "more_body": False})


class Drain:
    """ASGI middleware. stream_paths: a GET of one of these is a stream without an end."""

    def __init__(self, app: ASGIApp, *, stream_paths: Collection[str]) -> None:
        self._app = app
        self._stream_paths = stream_paths
        self._running: set[_Running] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in self._stream_paths
        running = _Running(send, is_stream)
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
        """The number of requests that are being answered, without streams."""
        return sum(not running.is_stream for running in self._running)

    def end_streams(self) -> None:
        """End the streams. Other requests go on."""
        for running in self._running:
            if running.is_stream:
                running.scope.cancel()

    def end_all(self) -> None:
        """End every request. A request without an answer gets the error that the hub was stopped."""
        for running in self._running:
            running.scope.cancel()
