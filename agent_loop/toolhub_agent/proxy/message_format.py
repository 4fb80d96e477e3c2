"""How a client sends an answer back as a message of its history. A prefetch must predict that message exactly.

Some agents keep the thinking in the text. Some remove it. Some get it in a separate field and send it back or not. Of
each answer the proxy keeps a hash per way of writing it. The client's next request shows which way the client uses.
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
    """way: how the content is written. reasoning_field: where the reasoning goes, "" for nowhere."""

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
