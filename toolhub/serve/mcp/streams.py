"""The stream of one answer over HTTP, as an event stream that a client can resume, or as plain JSON.

A message is encoded when it is sent and kept until the client must have read it: a client whose connection broke asks
again with the id of the last event that it saw. What is kept is bounded, per stream and per session.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

import anyio
from pydantic_core import to_json
from starlette.types import Send

from toolhub.model import Json

# Proxies and clients give up on silent connections after about a minute.
KEEPALIVE_S = 15.0
# What a client should wait before it resumes a stream.
RETRY_MS = 500
# The events of one stream that are kept. The oldest are dropped, which a client sees as a gap of notifications.
_MOST_EVENTS, _MOST_BYTES = 1024, 1 << 20
# Finished streams that a client may still resume, and their bytes. An answer that is larger is not kept.
_KEPT_STREAMS, _KEPT_BYTES = 64, 1 << 18
_NUMBER = re.compile("[0-9]{1,18}")
_EVENT_STREAM = b"text/event-stream"
_JSON = b"application/json"
Headers = list[tuple[bytes, bytes]]


class EventStream:
    """The messages of one answer, or of what belongs to no request, in order. The `Output` of a request over HTTP.

    is_resumable: events have ids, and a first one without data says from where to resume.
    """

    def __init__(self, key: str, *, is_resumable: bool, on_finish: Callable[[EventStream], None] | None = None) -> None:
        self.key = key
        self._on_finish = on_finish
        self.is_finished = False
        self.has_begun = False
        """Whether an HTTP response has begun."""
        self.size = 0
        self.on_first: Callable[[], None] = lambda: None
        """Called when there is something to write although no response has begun and the answer is not complete."""
        self._is_resumable = is_resumable
        self._events: deque[tuple[int, bytes]] = deque()
        self._number = 1 if is_resumable else 0
        self._writer = 0
        """Counts the responses that have written this stream. Only the latest one goes on."""
        self._written = 0
        """The number of the last event that a response has had."""
        self._is_closed_early = False
        self._wakes = 0
        self._news: anyio.Event | None = None
        """What the response waits for; none while it has something to write, as most answers are written at once."""

    def __repr__(self) -> str:
        return f"<EventStream {self.key} events={len(self._events)} finished={self.is_finished}>"

    # --- the hub's side ---------------------------------------------------------------------------------------------

    def send(self, message: Json) -> None:
        if self.is_finished:
            return
        self._put(message)
        if not self.has_begun:
            self.on_first()

    def finish(self, message: Json | None) -> None:
        """Send the answer itself, after which nothing follows; None: there is none, because the client cancelled."""
        if self.is_finished:
            return
        self.is_finished = True
        if message is not None:
            self._put(message)
        if self._on_finish is not None:
            self._on_finish(self)
        self._wake()

    def close_early(self) -> None:
        """End the response now, and keep what follows for the client that resumes it."""
        if not self._is_resumable or self.is_finished:
            return
        self._is_closed_early = True
        if not self.has_begun:
            self.on_first()
        self._wake()

    def detach(self) -> None:
        """End the response that is being written, if there is one."""
        self._writer += 1
        self._wake()

    def _put(self, message: Json) -> None:
        self._number += 1
        number = b"id: %s_%d\r\n" % (self.key.encode(), self._number) if self._is_resumable else b""
        data = to_json(message, inf_nan_mode="null")
        event = b"event: message\r\n%sdata: %s\r\n\r\n" % (number, data)
        self._events.append((self._number, event))
        self.size += len(event)
        while len(self._events) > _MOST_EVENTS or (self.size > _MOST_BYTES and len(self._events) > 1):
            self.size -= len(self._events.popleft()[1])
        self._wake()

    def _wake(self) -> None:
        self._wakes += 1
        if self._news is not None:
            self._news.set()
            self._news = None

    # --- the client's side ------------------------------------------------------------------------------------------

    async def write(self, send: Send, headers: Headers, *, after: int | None = None) -> None:
        """Write the events after number `after` as one HTTP response; None: those that no response has had.

        Returns when the response has ended.
        """
        self.has_begun = True
        self._writer += 1
        mine = self._writer
        if after is not None:
            self._is_closed_early = False
        position = self._written if after is None else after
        begun = [*headers, (b"content-type", _EVENT_STREAM), (b"cache-control", b"no-cache, no-transform")]
        chunk = self._priming() if self._is_resumable else b""
        is_over = False
        while not is_over:
            wakes = self._wakes
            chunk += self._taken(position)
            position = self._written = self._number
            is_over = self._writer != mine or self.is_finished or self._is_closed_early
            if begun:
                length = [(b"content-length", str(len(chunk)).encode())] if is_over else []
                await send({"type": "http.response.start", "status": 200, "headers": begun + length})
                begun = []
            if chunk or is_over:
                await send({"type": "http.response.body", "body": chunk, "more_body": not is_over})
                chunk = b""
            if not is_over and self._wakes == wakes:
                self._news = news = self._news or anyio.Event()
                with anyio.move_on_after(KEEPALIVE_S) as silence:
                    await news.wait()
                chunk = b": ping\r\n\r\n" if silence.cancelled_caught else b""

    def _priming(self) -> bytes:
        return b"id: %s_%d\r\nretry: %d\r\ndata: \r\n\r\n" % (self.key.encode(), 1, RETRY_MS)

    def _taken(self, after: int) -> bytes:
        """Return the events after this number. Those that cannot be resumed are forgotten."""
        if not self._events or self._events[-1][0] <= after:
            return b""
        taken = b"".join(data for number, data in self._events if number > after)
        if not self._is_resumable:
            self._events.clear()
        return taken


class EventLog:
    """The streams of one session, for clients that resume them."""

    def __init__(self) -> None:
        self._streams: dict[str, EventStream] = {}
        self._opened = 0
        self._finished: deque[EventStream] = deque()
        self._size = 0
        """Bytes of the finished ones."""

    def open(self, *, is_resumable: bool) -> EventStream:
        self._make_room()
        self._opened += 1
        stream = EventStream(str(self._opened), is_resumable=is_resumable, on_finish=self._finish)
        self._streams[stream.key] = stream
        return stream

    def find(self, event_id: str) -> tuple[EventStream, int] | None:
        """Return the stream of an event, and the event's number; None if it is not kept."""
        key, _, number = event_id.partition("_")
        stream = self._streams.get(key)
        return (stream, int(number)) if stream is not None and _NUMBER.fullmatch(number) else None

    def detach(self) -> None:
        """End every response."""
        for stream in self._streams.values():
            stream.detach()

    def _finish(self, stream: EventStream) -> None:
        self._finished.append(stream)
        self._size += stream.size

    def _make_room(self) -> None:
        while len(self._finished) > _KEPT_STREAMS or self._size > _KEPT_BYTES:
            stream = self._finished.popleft()
            self._size -= stream.size
            del self._streams[stream.key]


async def write_json(send: Send, status: int, body: Json | None, headers: Headers) -> None:
    """Write a whole response. body: None for none."""
    data = to_json(body, inf_nan_mode="null") if body is not None else b""
    kind: Headers = [(b"content-type", _JSON)] if body is not None else []
    sent = [*headers, *kind, (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": data, "more_body": False})
