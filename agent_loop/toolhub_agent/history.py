"""The messages of one conversation, and which part of them the model gets.

A model server reuses the longest common prefix of two prompts. So the system prompt never changes, every message is
built here in one way, and nothing that was appended changes. Only a rollback removes messages, from the end. A
`ToolResultTrimmer` decides which tool results the model gets. A `ContextBudget` says whether the next turn still fits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from toolhub_agent.types import Completion, Message, ToolOutcome, Usage

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


# --- Leaving out old tool results -------------------------------------------------------------------------------------
# Which tool results the model still gets, and what that costs in the server's prefix cache.
#
# Keeping exactly K results replaces one more result in every turn, in the middle of the prompt. The server must compute
# everything after that place again. With `trim_every` s the prompt grows from K to K + s results and is then cut back
# to K at once: s of s + 1 turns only append. Which results are left out depends on their number alone, so a resumed
# task gets the same prompt.

OMITTED = "Tool result is omitted to save tokens."
ALL = -1


@dataclass(frozen=True, slots=True)
class TrimmedPrompt:
    """A prompt. kept: how many first messages equal those of the previous prompt. omitted: turns without results.

    is_rewritten: it does not continue the previous prompt, so a server's cache of that ends after `kept` messages.
    """

    messages: list[Message]
    kept: int
    omitted: int
    is_rewritten: bool


class ToolResultTrimmer:
    """One conversation's prompts. The system prompt, the first user message and the model's answers always stay."""

    def __init__(self, keep: int, trim_every: int = 0) -> None:
        """keep: turns whose results stay, ALL for every one. trim_every: turns that are added before the next cut.

        keep=0 means 1: the model must see each result at least once.
        """
        if keep < ALL or trim_every < 0:
            raise ValueError(f"keep must be at least -1 and trim_every at least 0, not {keep} and {trim_every}")
        self._keep = keep if keep == ALL else max(keep, 1)
        self._trim_every = trim_every
        self._last: list[Message] = []

    def __repr__(self) -> str:
        return f"<ToolResultTrimmer {'all' if self._keep == ALL else self._keep}, trim_every {self._trim_every}>"

    def view(self, messages: Sequence[Message]) -> TrimmedPrompt:
        """The prompt for a history. The messages themselves are not changed."""
        shown, omitted = self._trimmed(messages, coming=0)
        last, self._last = self._last, shown
        kept = _common_prefix(last, shown)
        return TrimmedPrompt(list(shown), kept, omitted, kept < len(last))

    def preview(self, messages: Sequence[Message], *, coming: int) -> list[Message]:
        """These messages as the next prompt will have them. coming: turns of results that will be added before it."""
        return self._trimmed(messages, coming=coming)[0]

    def _trimmed(self, messages: Sequence[Message], *, coming: int) -> tuple[list[Message], int]:
        turns = result_turns(messages)
        omitted = self._omitted(len(turns) + coming)
        shown = list(messages)
        for place in (place for turn in turns[:omitted] for place in turn):
            shown[place] = {**messages[place], "content": OMITTED}
        return shown, omitted

    def _omitted(self, turns: int) -> int:
        if self._keep == ALL:
            return 0
        step = self._trim_every + 1
        return max(turns - self._keep, 0) // step * step


def result_turns(messages: Sequence[Message]) -> list[list[int]]:
    """The places of each turn's results.

    The first user message is the task. All other user messages, and those of tools, are results. A request for a
    summary counts as a result too: it takes the last result's place, and counting it keeps the prefix.
    """
    turns: list[list[int]] = []
    seen_task = False
    previous = ""
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "user" and not seen_task:
            seen_task = True
        elif role == "tool" and previous == "tool":
            turns[-1].append(place)
        elif role in ("user", "tool"):
            turns.append([place])
        previous = role
    return turns


def _common_prefix(old: Sequence[Message], new: Sequence[Message]) -> int:
    for place, (was, now) in enumerate(zip(old, new, strict=False)):
        if was is not now and was != now:
            return place
    return min(len(old), len(new))


# --- The context budget -----------------------------------------------------------------------------------------------
# Whether the next turn still leaves room for an answer.
#
# The rule is MiroFlow's: the context must fit the prompt and answer that the server just counted, the new results, the
# request for a summary, and a full answer to it. The new texts are not counted yet. Their tokens are estimated from
# their size in UTF-8 and this conversation's bytes per token. A tokenizer would have to be downloaded and could have
# another model's vocabulary. Bytes vary less than characters: four per token in English, three to five in Chinese,
# where a character has three.

# For texts that are not counted yet: prose, code and tables differ by about this much. MiroFlow has the same factor.
SAFETY_FACTOR = 1.5
RESERVE_TOKENS = 1000
# Used before the server counted anything. English has about four, program text about three.
FIRST_BYTES_PER_TOKEN = 3.0
# A token of a byte-level vocabulary has at least one byte. The maximum is for texts of blanks.
_FEWEST, _MOST = 1.0, 8.0
# With shorter additions the template's own tokens outweigh the text.
_TELLING_BYTES = 2000


class ContextBudget:
    """The token budget of one conversation. Sizes are tokens."""

    def __init__(self, *, max_context_tokens: int, max_answer_tokens: int) -> None:
        self._limit = max_context_tokens
        self._answer = max_answer_tokens
        self._last = Usage()
        self._last_size = 0
        self._whole = FIRST_BYTES_PER_TOKEN
        self._latest: float | None = None

    def __repr__(self) -> str:
        return f"<ContextBudget {self._last.prompt_tokens} of {self._limit}, {self.bytes_per_token:.2f} bytes a token>"

    @property
    def bytes_per_token(self) -> float:
        """The value of the prompt so far or of its latest growth, whichever gives more tokens."""
        return self._whole if self._latest is None else min(self._whole, self._latest)

    def note(self, prompt: Sequence[Message], usage: Usage) -> None:
        """Learn from an answered request: the prompt that was sent, and what the server counted."""
        size = sum(len(encoded(message)) for message in prompt)
        if usage.prompt_tokens:
            self._whole = _bounded(size / usage.prompt_tokens)
            grown = size - self._last_size, usage.prompt_tokens - self._last.prompt_tokens
            if self._last.prompt_tokens and grown[0] >= _TELLING_BYTES and grown[1] > 0:
                self._latest = _bounded(grown[0] / grown[1])
        else:  # the server does not count
            usage = Usage(math.ceil(size / self.bytes_per_token), usage.completion_tokens)
        self._last, self._last_size = usage, size

    def estimate(self, text: str) -> int:
        """The estimated tokens of a text, without a safety margin."""
        return math.ceil(len(text.encode("utf-8", "replace")) / self.bytes_per_token)

    def needed(self, results: Sequence[Message], summary: str) -> int:
        """Tokens up to the end of the final answer, if a summary were requested after these results."""
        new = sum(self.estimate(str(message["content"])) for message in results)
        counted = self._last.prompt_tokens + self._last.completion_tokens
        return counted + math.ceil(SAFETY_FACTOR * (new + self.estimate(summary))) + self._answer + RESERVE_TOKENS

    def fits(self, history: Sequence[Message], summary: str) -> bool:
        """Whether the loop may go on. If not: remove the last turn and request the summary.

        history: with the results of the turn at its end. summary: the request that would be sent.
        """
        return self.needed(_after_last_answer(history), summary) < self._limit


def _after_last_answer(messages: Sequence[Message]) -> Sequence[Message]:
    place = len(messages)
    while place and messages[place - 1]["role"] != "assistant":
        place -= 1
    return messages[place:]


def _bounded(ratio: float) -> float:
    return min(max(ratio, _FEWEST), _MOST)
