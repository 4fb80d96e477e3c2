"""Newline-delimited JSON without the quadratic trap.

The SDK's reader joins its buffer with every chunk, so that one 20 MB line costs seconds of the event loop. `LineBuffer`
looks at each byte once. Long lines are decoded in a worker thread by a decoder whose containers are Python code, so
that the interpreter can switch threads between elements: the loop goes on while 20 MB are parsed.
"""

from __future__ import annotations

import json
from json import decoder, scanner
from typing import Any

import anyio.to_thread
from pydantic_core import from_json

# Below this, decoding takes about a millisecond and a thread hop would cost more than it saves.
INLINE_BYTES = 1 << 20


class LineTooLong(Exception):
    """One line exceeded the limit."""


class LineBuffer:
    """Splits chunks into lines; holds at most `limit` bytes of an unfinished one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes. Raises LineTooLong."""
        head, newline, rest = chunk.partition(b"\n")
        self._pieces.append(head)
        self._held += len(head)
        if self._held > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        if not newline:
            return []
        lines = [b"".join(self._pieces), *rest.split(b"\n")]
        if max(map(len, lines)) > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        last = lines.pop()
        self._pieces, self._held = [last], len(last)
        return lines


class _InterruptibleDecoder(json.JSONDecoder):
    """The standard decoder with its containers in Python and its strings in C."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = decoder.JSONObject  # type: ignore[attr-defined]  # missing in typeshed
        self.parse_array = decoder.JSONArray  # type: ignore[attr-defined]  # missing in typeshed
        self.parse_string = decoder.scanstring  # type: ignore[attr-defined]  # missing in typeshed
        self.memo: dict[str, str] = {}
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # missing in typeshed


def _decode_long(line: bytes) -> Any:
    return _InterruptibleDecoder().decode(line.decode("utf-8", "replace"))


async def decode(line: bytes) -> Any:
    """Return the JSON value of one line; invalid UTF-8 becomes U+FFFD. Raises ValueError when it is not JSON."""
    if len(line) > INLINE_BYTES:
        return await anyio.to_thread.run_sync(_decode_long, line)
    return decode_inline(line)


def decode_inline(line: bytes) -> Any:
    """Like `decode`, in the caller's thread whatever the length."""
    try:
        # By default pydantic keeps up to 16,384 strings of what it decoded; values hardly ever come again.
        return from_json(line, cache_strings="keys")
    except ValueError:
        # jiter refuses invalid UTF-8 outright; a result with one bad byte is still a result.
        return json.loads(line.decode("utf-8", "replace"))
