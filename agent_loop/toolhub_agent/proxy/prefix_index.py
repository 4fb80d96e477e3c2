"""Finds the conversation that a request belongs to: the one that shares the longest prefix of messages with it.

It keeps no texts, only a hash for every prefix of the messages. Of each conversation it remembers the prefixes before
and after every answer. A request belongs to a conversation if it holds the same answers. After the conversation's
latest request comes the answer to it, which is known by its fingerprints. This also distinguishes agents of one task
(MiroFlow sends the same header for a main agent and its sub-agents).
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from pydantic_core import to_json

from toolhub_agent.types import Json, Message

if TYPE_CHECKING:
    from toolhub_agent.proxy.sessions import ProxySession

_DIGEST_BYTES = 16
# Random per process, so that nobody can test guessed texts against the hashes.
_KEY = os.urandom(16)


class PrefixHashes:
    """Hashes of `messages[:1]`, `messages[:2]`, ...

    Two requests have equal hashes as far as their messages are equal.
    """

    __slots__ = ("_digests", "marks")

    def __init__(self, digests: bytes, marks: tuple[int, ...]) -> None:
        """marks: lengths of the prefixes that identify a conversation: before and after each answer, and all."""
        self._digests = digests
        self.marks = marks

    def __len__(self) -> int:
        return len(self._digests) // _DIGEST_BYTES

    def __repr__(self) -> str:
        return f"<PrefixHashes of {len(self)} messages>"

    def prefix(self, length: int) -> bytes:
        """The hash of the first `length` messages."""
        return self._digests[(length - 1) * _DIGEST_BYTES : length * _DIGEST_BYTES]

    def common(self, other: PrefixHashes) -> int:
        """How many messages from the start are equal. Found by bisection."""
        low, high = 0, min(len(self), len(other))
        while low < high:
            middle = (low + high + 1) // 2
            if self.prefix(middle) == other.prefix(middle):
                low = middle
            else:
                high = middle - 1
        return low


def prefix_hashes(messages: Sequence[Message], *, group: str = "") -> PrefixHashes:
    """Hash every prefix of the messages. group: requests of different groups share no prefix."""
    running = blake2b(digest_of(group.encode()), key=_KEY, digest_size=_DIGEST_BYTES)
    digests, marks = bytearray(), []
    for number, message in enumerate(messages):
        if number and message.get("role") == "assistant":
            marks += [number, number + 1]
        running.update(_message_bytes(message))  # a JSON object marks its own end, so one hash can run over all
        digests += running.digest()
    return PrefixHashes(bytes(digests), tuple(dict.fromkeys([*marks, len(messages)])))


def digest_of(content: bytes) -> bytes:
    return blake2b(content, key=_KEY, digest_size=_DIGEST_BYTES).digest()


def digest_of_text(text: str) -> bytes:
    return digest_of(text.encode("utf-8", "surrogatepass"))


def _message_bytes(message: Message) -> bytes:
    try:
        return to_json(message)
    except ValueError:  # half a surrogate pair
        return json.dumps(message).encode()


# No engine serves this many conversations at once. A hash costs some 250 bytes.
MAX_SESSIONS = 4096
MAX_HASHES = 200_000
# Conversations with the same beginning, which only their answers distinguish.
MAX_ALIKE = 256


class SessionMatcher:
    """Conversations by their prefixes. The least recently used are removed first."""

    def __init__(self) -> None:
        self._known: OrderedDict[ProxySession, PrefixHashes] = OrderedDict()
        self._by_prefix: dict[bytes, list[ProxySession]] = {}
        self._hashes = 0

    def __repr__(self) -> str:
        return f"<SessionMatcher {len(self._known)} conversations, {self._hashes} hashes>"

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[ProxySession]:
        """Least recently used first."""
        return iter(list(self._known))

    def find(self, hashes: PrefixHashes, messages: Sequence[Message], *, named: bool) -> ProxySession | None:
        """The conversation; None if the request begins a new one. named: the client names the session itself."""
        for length in reversed(hashes.marks):
            found = self._by_prefix.get(hashes.prefix(length))
            if found is None:
                continue
            if length == len(hashes):
                return _asked_again(found, is_first=len(hashes.marks) == 1, named=named)
            if messages[length - 1].get("role") == "assistant":
                return _latest(each for each in found if not each.is_asking)
            return _went_on(found, length, messages[length], named=named)
        return None

    def note(self, conversation: ProxySession, hashes: PrefixHashes) -> None:
        """Remember the conversation's latest request."""
        old = self._known.pop(conversation, None)
        kept = 0 if old is None else old.common(hashes)
        if old is not None:
            self._forget(conversation, old, beyond=kept)
        self._known[conversation] = hashes
        known = {length for length in old.marks if length <= kept} if old is not None else set()
        for length in hashes.marks:
            if length not in known:
                self._remember(conversation, hashes.prefix(length))

    def drop(self, conversation: ProxySession) -> None:
        hashes = self._known.pop(conversation, None)
        if hashes is not None:
            self._forget(conversation, hashes, beyond=0)

    def surplus(self) -> ProxySession | None:
        """A conversation to remove, if there are too many; never one that is in use."""
        if len(self._known) <= MAX_SESSIONS and self._hashes <= MAX_HASHES:
            return None
        return next((each for each in self._known if not each.is_in_use), None)

    def _remember(self, conversation: ProxySession, prefix: bytes) -> None:
        alike = self._by_prefix.setdefault(prefix, [])
        alike.append(conversation)
        self._hashes += 1
        if len(alike) > MAX_ALIKE:
            alike.pop(0)
            self._hashes -= 1

    def _forget(self, conversation: ProxySession, hashes: PrefixHashes, *, beyond: int) -> None:
        for length in hashes.marks:
            if length <= beyond:
                continue
            prefix = hashes.prefix(length)
            alike = self._by_prefix.get(prefix, [])
            if conversation in alike:
                alike.remove(conversation)
                self._hashes -= 1
            if not alike:
                self._by_prefix.pop(prefix, None)


def _went_on(found: Sequence[ProxySession], length: int, answer: Message, *, named: bool) -> ProxySession | None:
    """Return the conversation that got this answer; else the only one that may have got it."""
    idle = [each for each in found if not each.is_asking]
    waiting = [each for each in idle if each.hashes is not None and len(each.hashes) == length]
    if (given := _latest(each for each in waiting if each.answered(answer))) is not None:
        return given
    if len(waiting) == 1:
        return waiting[0]  # its client has changed the answer
    return _latest(idle) if named else None  # its client has returned to an earlier turn


def _asked_again(found: Sequence[ProxySession], *, is_first: bool, named: bool) -> ProxySession | None:
    """Find who sends the same request again: the client discarded the answer, or another agent has the same task."""
    free = [each for each in found if not each.is_in_use]
    return _latest(free if named or not is_first else (each for each in free if each.turns == 0))


def _latest(found: Iterable[ProxySession]) -> ProxySession | None:
    return max(found, key=lambda each: each.used_at, default=None)


# --- How a client sends answers back ----------------------------------------------------------------------------------
# A prefetch must predict the next request, which contains the answer as a message. Some agents keep the thinking in the
# text. Some remove it. Some get it in a separate field and send it back or not. Of each answer the proxy keeps one hash
# per way of writing it. The client's next request shows which way the client uses.

REASONING_FIELDS = ("reasoning_content", "reasoning")
_THINK_END = "</think>"


def _after_thinking(text: str, _: str) -> str:
    return text.rpartition(_THINK_END)[2]


# Functions of (text, reasoning). The first match is taken, so the plainest come first.
_FORMATS: tuple[Callable[[str, str], str], ...] = (
    lambda text, _: text,
    lambda text, _: text.strip(),
    _after_thinking,
    lambda text, _: _after_thinking(text, _).strip(),
    lambda text, reasoning: f"<think>\n{reasoning}\n</think>\n\n{text}",
    lambda text, reasoning: f"<think>\n{reasoning}\n</think>\n{text}",
    lambda text, reasoning: f"<think>{reasoning}</think>\n\n{text}",
    lambda text, reasoning: f"<think>{reasoning}</think>{text}",
)
_WITH_REASONING = 4


@dataclass(frozen=True, slots=True)
class AssistantMessageFormat:
    """How a client writes an answer back. way: of the content. reasoning_field: of the reasoning; "": left out."""

    way: int = 0
    reasoning_field: str = ""
    empty: str | None = None
    """The content of a message that has only calls."""

    def message(self, text: str, reasoning: str, calls: Sequence[Json]) -> Message:
        """The answer as this client will send it back."""
        way = self.way if reasoning or self.way < _WITH_REASONING else 0
        message: Message = {"role": "assistant", "content": _FORMATS[way](text, reasoning)}
        if calls and not message["content"]:
            message["content"] = self.empty
        if reasoning and self.reasoning_field:
            message[self.reasoning_field] = reasoning
        return message | ({"tool_calls": list(calls)} if calls else {})


@dataclass(frozen=True, slots=True)
class AnswerFingerprints:
    """What is kept of an answer: hash of its content -> the way it is written, and the ids of its calls."""

    ways: Mapping[bytes, int]
    call_ids: frozenset[str]
    had_reasoning: bool

    def is_of(self, message: Message) -> bool:
        """Whether this message is that answer, in any of the known ways."""
        return self._way(message) is not None or not self.call_ids.isdisjoint(_ids(message.get("tool_calls")))

    def learn(self, message: Message, form: AssistantMessageFormat) -> AssistantMessageFormat:
        """The client's format, now that it sent this answer back. What the message does not show stays unchanged."""
        way = self._way(message)
        if way is not None:
            form = replace(form, way=way)
        if self.had_reasoning:
            form = replace(form, reasoning_field=next((name for name in REASONING_FIELDS if message.get(name)), ""))
        if message.get("tool_calls") and not message.get("content"):
            form = replace(form, empty="" if message.get("content") == "" else None)
        return form

    def _way(self, message: Message) -> int | None:
        content = _text_in(message.get("content"))
        return self.ways.get(digest_of_text(content)) if content else None


def fingerprints_of(text: str, reasoning: str, calls: Sequence[Json]) -> AnswerFingerprints:
    ways: dict[bytes, int] = {}
    for number, way in enumerate(_FORMATS if reasoning else _FORMATS[:_WITH_REASONING]):
        if content := way(text, reasoning):
            ways.setdefault(digest_of_text(content), number)
    return AnswerFingerprints(ways, _ids(calls), bool(reasoning))


def _ids(calls: object) -> frozenset[str]:
    if not isinstance(calls, list | tuple):
        return frozenset()
    return frozenset(call["id"] for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str))


def _text_in(content: object) -> str:
    """The text of a string, or of a list of text parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
