"""Server-sent events as bytes: cut where one ends, so that one of them can be left out and all others stay the same."""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json

# An event ends with an empty line (WHATWG HTML, section 9.2.6: LF, CRLF or CR).
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
# A longer one is no event of this API; it goes on as it is.
MAX_EVENT_BYTES = 8 << 20
_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


class SseSplitter:
    """Takes bytes as they come, hands out whole events with their ends."""

    def __init__(self) -> None:
        self._rest = b""
        self._seen = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completes."""
        rest = self._rest + piece if self._rest else piece
        events: list[bytes] = []
        begin, look = 0, max(0, self._seen - 3)
        while (end := _END.search(rest, look)) is not None:
            events.append(rest[begin : end.end()])
            begin = look = end.end()
        self._rest = rest[begin:]
        self._seen = len(self._rest)
        if self._seen > MAX_EVENT_BYTES:
            events.append(self.take_rest())
        return events

    def take_rest(self) -> bytes:
        """What stands behind the last whole event."""
        rest, self._rest, self._seen = self._rest, b"", 0
        return rest


def is_usage_only(event: bytes) -> bool:
    """The chunk that `stream_options.include_usage` adds at the end: no choices, only usage."""
    return _USAGE.search(event) is not None and _NO_CHOICES.search(event) is not None


def event_data(event: bytes) -> Any:
    """The JSON that an event carries; None for `[DONE]`, comments and events without data. Raises ValueError."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    written = b"\n".join(lines)
    return from_json(written) if written and written != b"[DONE]" else None
