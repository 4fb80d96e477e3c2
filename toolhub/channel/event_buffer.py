"""Server-sent events out of the bytes of a stream, without I/O. See the HTML standard, section 9.2.6."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A blank line ends an event; lines end with LF, CR LF or CR.
_END = re.compile(rb"\n\r?\n|\r\r")
# The end of an event may come in two chunks. So many of its bytes may be there before its last one.
_END_BYTES = 2


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """id: None if the event has none. retry_ms: how long to wait before resuming; None if it does not say."""

    name: str
    data: bytes
    id: str | None = None
    retry_ms: int | None = None


class EventTooLarge(Exception):
    """One event exceeded the limit."""


class EventBuffer:
    """Splits chunks into events; holds at most `limit` bytes of an unfinished one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that `chunk` completes; comments are none. Raises EventTooLarge."""
        held = self._held
        searched = max(0, len(held) - _END_BYTES)
        held += chunk
        events = []
        begin = 0
        while (end := _END.search(held, searched)) is not None:
            self._check(end.start() - begin)
            event = _parsed(bytes(held[begin : end.start()]))
            if event is not None:
                events.append(event)
            begin = searched = end.end()
        del held[:begin]
        self._check(len(held))
        return events

    def _check(self, size: int) -> None:
        if size > self._limit:
            self._held.clear()
            raise EventTooLarge(f"an event of more than {self._limit} bytes")


def _parsed(block: bytes) -> ServerEvent | None:
    name, data, key, retry, is_empty = b"", [], None, None, True
    for line in block.splitlines():
        label, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match label:
            case b"data":
                data.append(value)
            case b"event":
                name = value
            case b"id" if b"\0" not in value:
                key = value.decode("utf-8", "replace")
            case b"retry" if value.isdigit() and len(value) < 10:
                retry = int(value)
            case _:
                continue
        is_empty = False
    if is_empty:
        return None
    return ServerEvent(name.decode("utf-8", "replace") or "message", b"\n".join(data), key, retry)
