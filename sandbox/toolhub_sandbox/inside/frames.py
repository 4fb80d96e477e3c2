"""Messages between hub, agent and worker: a JSON head, then parts of raw bytes. The head has the size of each part.

Each side treats the other as hostile: sizes are checked before anything is allocated.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_SIZES = struct.Struct("<II")
# Room for an exception's text and traceback (up to twelve bytes of JSON for a character) and for 1,000 displays.
MAX_HEAD = 1 << 20
CHUNK_BYTES = 256 << 10
"""Bytes of a file that travel in one message."""
RECEIVE_BYTES = 64 << 10
"""Bytes to ask a socket for. Python allocates all of them first; from 128 KiB on, malloc maps and unmaps memory."""

Head = dict[str, Any]
Message = tuple[Head, list[bytes]]


class BadFrame(Exception):
    """The other side broke the message format. Nothing more that it sends can be trusted."""


def encode(head: Head, *parts: bytes) -> bytes:
    """Return the bytes of one message. Raises ValueError for a head that the other side would refuse."""
    packed = json.dumps(head | {"parts": [len(part) for part in parts]}).encode()
    if len(packed) > MAX_HEAD:
        raise ValueError(f"{len(packed)} bytes of settings in one request; the most is {MAX_HEAD}")
    return b"".join((_SIZES.pack(len(packed), sum(map(len, parts))), packed, *parts))


class FrameBuffer:
    """Bytes in, messages out."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take what arrived and return the messages that are complete. Raises BadFrame."""
        self._data += data
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        data = self._data
        if len(data) < _SIZES.size:
            return None
        head_size, body_size = _SIZES.unpack_from(data)
        if head_size > MAX_HEAD or body_size > self._max_body:
            raise BadFrame(f"a message of {head_size} + {body_size} bytes")
        end = _SIZES.size + head_size + body_size
        if len(data) < end:
            return None
        body_at = _SIZES.size + head_size
        head = _head(bytes(data[_SIZES.size : body_at]), body_size)
        parts = []
        for size in head["parts"]:
            parts.append(bytes(data[body_at : body_at + size]))
            body_at += size
        del data[:end]
        return head, parts


def _head(packed: bytes, body_size: int) -> Head:
    try:
        head = json.loads(packed)
        sizes = head["parts"]
        fits = all(type(size) is int and size >= 0 for size in sizes) and sum(sizes) == body_size
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise BadFrame(f"the head of a message cannot be read: {type(exc).__name__}") from None
    if not isinstance(head, dict) or not fits:
        raise BadFrame("the head of a message does not match its parts")
    return head


def is_display(shown: object) -> bool:
    """Whether this has the form of a display: [is it the result, [MIME types of its parts]]."""
    if not isinstance(shown, list) or len(shown) != 2:
        return False
    is_result, kinds = shown
    return type(is_result) is bool and isinstance(kinds, list) and all(type(kind) is str for kind in kinds)


def receive(channel: socket.socket, buffer: FrameBuffer) -> Message:
    """Wait for the next message on a blocking socket. Raises EOFError, BadFrame."""
    messages = buffer.feed(b"")
    while not messages:
        data = channel.recv(RECEIVE_BYTES)
        if not data:
            raise EOFError
        messages = buffer.feed(data)
    (message,) = messages  # the other side sends one message at a time
    return message
