"""Messages between hub, agent and worker: a JSON head, and parts of raw bytes whose sizes the head tells.

Each side takes the other for hostile: sizes are bounded before anything is allocated.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_SIZES = struct.Struct("<II")
# An exception's text and traceback, with twelve bytes of JSON for a character, and what tells of 1,000 displays.
MAX_HEAD = 1 << 20
CHUNK_BYTES = 256 << 10
"""Bytes of a file that travel in one message."""
RECEIVE_BYTES = 64 << 10
"""Bytes to ask a socket for: room for all is made first, and from 128 KiB on that is a mapping made and unmade."""

Head = dict[str, Any]
Message = tuple[Head, list[bytes]]


class BadFrame(Exception):
    """The other side does not keep to the format; nothing it sends can be trusted any more."""


def encode(head: Head, *parts: bytes) -> bytes:
    """Return the bytes of one message. Raises ValueError for a head that the other side would not take."""
    packed = json.dumps(head | {"parts": [len(part) for part in parts]}).encode()
    if len(packed) > MAX_HEAD:
        raise ValueError(f"{len(packed)} bytes of settings for one request; {MAX_HEAD} are possible")
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
        raise BadFrame(f"a head that cannot be read: {type(exc).__name__}") from None
    if not isinstance(head, dict) or not fits:
        raise BadFrame("a head that does not describe its parts")
    return head


def is_display(shown: object) -> bool:
    """Whether this tells of a display: whether it is a result, and the MIME types of the parts that follow."""
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
    (message,) = messages  # one question at a time
    return message
