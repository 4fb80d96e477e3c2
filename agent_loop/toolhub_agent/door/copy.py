"""A copy of an answer that passes through: its text, calls and usage, for whoever gives the hints.

Whatever it cannot read costs only the hints of that turn; the answer itself has long gone on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from toolhub_agent.door.events import data_of
from toolhub_agent.errors import AnswerUnreadable
from toolhub_agent.llm.accumulator import AnswerAccumulator, usage_of
from toolhub_agent.llm.errors import AttemptFailed
from toolhub_agent.model import Json, Usage

logger = logging.getLogger("toolhub.llm_door")


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer of a chat. ttft: seconds from sending the request to its first piece."""

    text: str
    reasoning: str
    calls: tuple[Json, ...]
    usage: Usage
    ttft: float


class AnswerCopy:
    """Reads along. is_chat: completions of plain text only have a usage."""

    def __init__(self, *, is_chat: bool) -> None:
        self.usage: Usage | None = None
        self._is_chat = is_chat
        self._reader = AnswerAccumulator()
        self._is_readable = True

    def __repr__(self) -> str:
        return f"<AnswerCopy {self._reader!r}{'' if self._is_readable else ', unreadable'}>"

    def take_event(self, event: bytes) -> bool:
        """Read one server-sent event; true if it holds a piece of the answer."""
        if not self._is_readable:
            return False
        try:
            chunk = data_of(event)
            return chunk is not None and self._take(chunk)
        except (ValueError, AttemptFailed, AnswerUnreadable, RecursionError) as exc:
            self._give_up(exc)
            return False

    def take_whole(self, body: Any) -> None:
        """Read an answer that was not streamed."""
        try:
            choices = body["choices"] if isinstance(body, dict) else []
            first = choices[0] if choices else {}
            self._take({**body, "choices": [{**first, "delta": first.get("message")}]})
        except (LookupError, TypeError, AttributeError, AttemptFailed, AnswerUnreadable) as exc:
            self._give_up(exc)

    def answer(self, ttft: float) -> Answer | None:
        """What it came to; None if it is no whole answer."""
        if not self._is_chat or not self._is_readable:
            return None
        try:
            self._reader.finish()
        except (AttemptFailed, AnswerUnreadable):
            return None
        reader = self._reader
        return Answer(reader.text, reader.reasoning, reader.calls(), self.usage or Usage(), ttft)

    def _take(self, chunk: Json) -> bool:
        if isinstance(chunk, dict) and isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage_of(usage, chunk)
        if not self._is_chat:
            return bool(chunk.get("choices"))
        return self._reader.feed(chunk) is not None

    def _give_up(self, exc: Exception) -> None:
        self._is_readable = False
        logger.debug("an answer cannot be read along: %s", type(exc).__name__)
