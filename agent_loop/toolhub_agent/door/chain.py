"""What a request's messages are, without their text: a hash for every prefix of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import blake2b

from pydantic_core import to_json

from toolhub_agent.model import Message

_SIZE = 16
# Own to this process: hashes of texts that somebody knows tell nothing.
_KEY = os.urandom(16)


class Chain:
    """Hashes of `messages[:1]`, `messages[:2]`, ...; those of two requests are equal as far as their messages are."""

    __slots__ = ("_digests", "marks")

    def __init__(self, digests: bytes, marks: tuple[int, ...]) -> None:
        """marks: lengths of the prefixes that tell conversations apart: before and behind each answer, and all."""
        self._digests = digests
        self.marks = marks

    def __len__(self) -> int:
        return len(self._digests) // _SIZE

    def __repr__(self) -> str:
        return f"<Chain of {len(self)} messages>"

    def prefix(self, length: int) -> bytes:
        """The hash of the first `length` messages."""
        return self._digests[(length - 1) * _SIZE : length * _SIZE]

    def common(self, other: Chain) -> int:
        """How many messages from the start are the same. Equal hashes follow equal ones, so halving finds it."""
        low, high = 0, min(len(self), len(other))
        while low < high:
            middle = (low + high + 1) // 2
            if self.prefix(middle) == other.prefix(middle):
                low = middle
            else:
                high = middle - 1
        return low


def chain_of(messages: Sequence[Message], *, group: str = "") -> Chain:
    """group: requests of different groups have nothing in common."""
    running = blake2b(digest_of(group.encode()), key=_KEY, digest_size=_SIZE)
    digests, marks = bytearray(), []
    for number, message in enumerate(messages):
        if number and message.get("role") == "assistant":
            marks += [number, number + 1]
        running.update(_written(message))  # JSON objects show where they end, so one hash runs over all of them
        digests += running.digest()
    return Chain(bytes(digests), tuple(dict.fromkeys([*marks, len(messages)])))


def digest_of(content: bytes) -> bytes:
    return blake2b(content, key=_KEY, digest_size=_SIZE).digest()


def digest_of_text(text: str) -> bytes:
    return digest_of(text.encode("utf-8", "surrogatepass"))


def _written(message: Message) -> bytes:
    try:
        return to_json(message)
    except ValueError:  # half a surrogate pair
        return json.dumps(message).encode()
