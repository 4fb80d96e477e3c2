"""The messages of one conversation, append-only.

A model server reuses the longest common prefix of two prompts. So the system prompt is fixed for life, every message
is built here in one way, and nothing that was appended changes. Only a rollback takes messages away, from the end.
What the model is shown of the history is decided in `trimming`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

from toolhub_agent.types import Completion, Message, ToolOutcome

# --- JSON, always written in the same way -----------------------------------------------------------------------------
# The one way this package writes JSON: the same value always gives the same bytes.


def dumps(value: Any) -> str:
    """Compact JSON in one line. Keys keep their order: chat templates print them in it, so it is part of the prompt.

    What JSON does not know (a path, a date) is written as its text, for a log must not fail a task.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def encoded(value: Any) -> bytes:
    """`dumps` as UTF-8. Half a surrogate pair, which UTF-8 cannot hold, becomes its JSON escape."""
    return dumps(value).encode("utf-8", "backslashreplace")


def sendable(text: str) -> str:
    """The text without halves of surrogate pairs: tools do return them, and model servers refuse them."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- Tool results, in MiroFlow's words, which models were trained on --------------------------------------------------
# How results of tools are put to the model; the sentences are MiroFlow's, which models were trained on.

TRUNCATED = "\n... [Result truncated]"


def result_text(outcome: ToolOutcome, *, limit: int) -> str:
    """What the model reads of one call. limit: characters of the tool's own text; the rest is cut with a note."""
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
# The messages of one conversation, append-only.
#
# A model server reuses the longest common prefix of two prompts. So the system prompt is fixed for life, every message
# is built here in one way, and nothing that was appended changes. Only a rollback takes messages away, from the end.
# What the model is shown of it is the view's matter (`context.keep`).

RESULT_CHARS = 100_000


class HistoryObserver(Protocol):
    """Is told of every change, in its order; `tasklog.ConversationLog` is one."""

    def appended(self, messages: Sequence[Message]) -> None: ...

    def popped(self, count: int) -> None: ...


class History:
    """One conversation. protocol: how results are written, as a text of the user's or as messages of role `tool`."""

    def __init__(
        self,
        system: str,
        *,
        protocol: Literal["xml", "native"] = "xml",
        result_chars: int = RESULT_CHARS,
        journal: HistoryObserver | None = None,
        restored: Iterable[Message] = (),
    ) -> None:
        """restored: messages after the system prompt as a log had them; the journal is not told of these again."""
        self._system: Message = {"role": "system", "content": system}
        self._protocol = protocol
        self._result_chars = result_chars
        self._journal = journal
        self._messages: list[Message] = list(restored)

    def __repr__(self) -> str:
        return f"<History {self._protocol}, {self.turns} turns, {len(self._messages)} messages>"

    def __len__(self) -> int:
        """Messages, the system prompt among them."""
        return 1 + len(self._messages)

    @property
    def system(self) -> str:
        return str(self._system["content"])

    @property
    def turns(self) -> int:
        """Answers of the model that stand."""
        return sum(message["role"] == "assistant" for message in self._messages)

    def messages(self) -> list[Message]:
        """All of it, for a request. The list is the caller's, the messages are not: change none."""
        return [self._system, *self._messages]

    def append_user(self, text: str) -> None:
        """The task, or the request for a summary."""
        self._append([{"role": "user", "content": sendable(text)}])

    def append_assistant(self, completion: Completion) -> None:
        """An answer as it was generated, so that what the server cached of it stays usable."""
        message: Message = {"role": "assistant", "content": sendable(completion.text)}
        if completion.reasoning:
            message["reasoning_content"] = sendable(completion.reasoning)
        if completion.tool_calls:
            message["tool_calls"] = list(completion.tool_calls)
        self._append([message])

    def append_results(self, outcomes: Iterable[ToolOutcome]) -> None:
        """All results of a turn at once, in the order of its calls, whatever order they came in."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.call.index)
        if ordered:
            self._append(self.results_of(ordered))

    def results_of(self, ordered: Sequence[ToolOutcome]) -> list[Message]:
        """The messages these results will be, without appending them (a prefill may be sent ahead of the rest)."""
        texts = [result_text(outcome, limit=self._result_chars) for outcome in ordered]
        if self._protocol == "xml":
            return [{"role": "user", "content": "\n".join(texts)}]
        return [
            {"role": "tool", "tool_call_id": outcome.call.id or "", "content": text}
            for outcome, text in zip(ordered, texts, strict=True)
        ]

    def pop_turn(self) -> list[Message]:
        """Take back the last answer of the model and what came after it; returns that, empty if there is none."""
        for place in range(len(self._messages) - 1, -1, -1):
            if self._messages[place]["role"] == "assistant":
                return self._pop_from(place)
        return []

    def pop_results(self) -> list[Message]:
        """Take back what follows the last answer of the model (before a request for a summary takes its place)."""
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
