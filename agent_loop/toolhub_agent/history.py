"""The messages of one conversation, append-only.

A model server reuses the longest common prefix of two prompts. So the system prompt never changes, every message is
built here in one way, and nothing that was appended changes. Only a rollback removes messages, from the end. `trimming`
decides which part of the history the model gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

from toolhub_agent.types import Completion, Message, ToolOutcome

# --- JSON -------------------------------------------------------------------------------------------------------------
# How this package writes JSON: the same value always gives the same bytes.


def dumps(value: Any) -> str:
    """Compact JSON on one line. Keys keep their order, because chat templates print them in it.

    A value that JSON cannot hold (a path, a date) is written as text, because a log must not fail a task.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def encoded(value: Any) -> bytes:
    """`dumps` as UTF-8. Half a surrogate pair, which UTF-8 cannot hold, is written as its JSON escape."""
    return dumps(value).encode("utf-8", "backslashreplace")


def sendable(text: str) -> str:
    """The text without halves of surrogate pairs: some tools return them, and model servers refuse them."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- Tool results -----------------------------------------------------------------------------------------------------
# How the model gets tool results. The sentences are MiroFlow's, because models were trained on them.

TRUNCATED = "\n... [Result truncated]"


def result_text(outcome: ToolOutcome, *, limit: int) -> str:
    """The text that the model gets for one call. limit: characters of the tool's own text. The rest is cut off."""
    tool, server = outcome.call.tool, outcome.call.server
    text = sendable(_cut(outcome.text, limit))
    if outcome.is_error:
        return f"Tool call to {tool} on {server} failed. Error: {text}"
    if not text:
        return f"Tool call to {tool} on {server} completed, but produced no specific output or result."
    return text


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + TRUNCATED


# --- The history ------------------------------------------------------------------------------------------------------

RESULT_CHARS = 100_000


class HistoryObserver(Protocol):
    """Called with every change, in order. `tasklog.ConversationLog` is one."""

    def appended(self, messages: Sequence[Message]) -> None: ...

    def popped(self, count: int) -> None: ...


class History:
    """One conversation. protocol: whether results are written as a user message or as messages of role `tool`."""

    def __init__(
        self,
        system: str,
        *,
        protocol: Literal["xml", "native"] = "xml",
        result_chars: int = RESULT_CHARS,
        journal: HistoryObserver | None = None,
        restored: Iterable[Message] = (),
    ) -> None:
        """restored: the logged messages after the system prompt; they are not written to the journal again."""
        self._system: Message = {"role": "system", "content": system}
        self._protocol = protocol
        self._result_chars = result_chars
        self._journal = journal
        self._messages: list[Message] = list(restored)

    def __repr__(self) -> str:
        return f"<History {self._protocol}, {self.turns} turns, {len(self._messages)} messages>"

    def __len__(self) -> int:
        """The number of messages, with the system prompt."""
        return 1 + len(self._messages)

    @property
    def system(self) -> str:
        return str(self._system["content"])

    @property
    def turns(self) -> int:
        """The number of the model's answers in the history."""
        return sum(message["role"] == "assistant" for message in self._messages)

    def messages(self) -> list[Message]:
        """All messages, for a request. The list is a copy; the messages are not, so do not change them."""
        return [self._system, *self._messages]

    def append_user(self, text: str) -> None:
        """Append the task, or the request for a summary."""
        self._append([{"role": "user", "content": sendable(text)}])

    def append_assistant(self, completion: Completion) -> None:
        """Append an answer exactly as it was generated, so that the server's cache of it stays usable."""
        message: Message = {"role": "assistant", "content": sendable(completion.text)}
        if completion.reasoning:
            message["reasoning_content"] = sendable(completion.reasoning)
        if completion.tool_calls:
            message["tool_calls"] = list(completion.tool_calls)
        self._append([message])

    def append_results(self, outcomes: Iterable[ToolOutcome]) -> None:
        """Append all results of a turn, in the order of its calls, whatever order they came in."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.call.index)
        if ordered:
            self._append(self.results_of(ordered))

    def results_of(self, ordered: Sequence[ToolOutcome]) -> list[Message]:
        """The messages that these results become, without appending them. A prefetch may use them."""
        texts = [result_text(outcome, limit=self._result_chars) for outcome in ordered]
        if self._protocol == "xml":
            return [{"role": "user", "content": "\n".join(texts)}]
        return [
            {"role": "tool", "tool_call_id": outcome.call.id or "", "content": text}
            for outcome, text in zip(ordered, texts, strict=True)
        ]

    def pop_turn(self) -> list[Message]:
        """Remove the model's last answer and all after it. Return what was removed; empty if there is no answer."""
        for place in range(len(self._messages) - 1, -1, -1):
            if self._messages[place]["role"] == "assistant":
                return self._pop_from(place)
        return []

    def pop_results(self) -> list[Message]:
        """Remove all after the model's last answer, before a request for a summary replaces it."""
        place = len(self._messages)
        while place > 1 and self._messages[place - 1]["role"] != "assistant":
            place -= 1
        return self._pop_from(place)

    def _pop_from(self, place: int) -> list[Message]:
        popped = self._messages[place:]
        del self._messages[place:]
        if popped and self._journal is not None:
            self._journal.popped(len(popped))
        return popped

    def _append(self, messages: list[Message]) -> None:
        self._messages += messages
        if self._journal is not None:
            self._journal.appended(messages)
