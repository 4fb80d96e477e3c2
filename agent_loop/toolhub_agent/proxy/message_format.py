"""How a client sends an answer back as a message of its history. Learned, for a prefetch must guess it exactly.

Some agents keep the thinking in the text, some cut it off, some get it in a field of its own and leave it away or send
it along. Each answer is remembered as hashes of every such way of writing it; what the client then sends tells its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolhub_agent.proxy.prefix_index import digest_of_text
from toolhub_agent.types import Json, Message

REASONING_FIELDS = ("reasoning_content", "reasoning")
_THINK_END = "</think>"


def _after_thinking(text: str, _: str) -> str:
    return text.rpartition(_THINK_END)[2]


# Of (text, reasoning). The first that fits is taken, so the plainest are first.
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
    """way: of writing the content. reasoning_field: where the reasoning goes, "" for nowhere."""

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
    """What is remembered of an answer: hash of its content -> the way in which that is written; its calls' ids."""

    ways: Mapping[bytes, int]
    call_ids: frozenset[str]
    had_reasoning: bool

    def is_of(self, message: Message) -> bool:
        """Is this message that answer, in whatever way it was written?"""
        return self._way(message) is not None or not self.call_ids.isdisjoint(_ids(message.get("tool_calls")))

    def learn(self, message: Message, form: AssistantMessageFormat) -> AssistantMessageFormat:
        """The client's form, now that it sent this answer back; what the message does not tell stays."""
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
    """Of a text, or of a list of parts that are texts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
