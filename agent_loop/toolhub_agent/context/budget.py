"""Whether the next turn still leaves room for an answer.

The rule is MiroFlow's: after every turn, the prompt and answer just counted by the server, the new results, the request
for a summary and a full answer to it must fit the context. The new texts are not counted yet; they are estimated from
their size in UTF-8 and the bytes per token of this very conversation. A tokenizer would count with another model's
vocabulary, and must be downloaded. Bytes vary less than characters: four per token in English, three to five in
Chinese, where a character is three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolhub_agent.context.serial import encoded
from toolhub_agent.model import Message, Usage

# Of texts not counted yet: prose, code and tables differ by about this much. MiroFlow has the same factor.
SAFETY = 1.5
RESERVE_TOKENS = 1000
# Before the server counted anything; English has about four, program text about three.
FIRST_GUESS = 3.0
# A token of a byte-level vocabulary is at least one byte. The other end is for texts of blanks.
_FEWEST, _MOST = 1.0, 8.0
# In shorter additions the template's own tokens outweigh the text.
_TELLING_BYTES = 2000


class ContextBudget:
    """One conversation's. Sizes are tokens."""

    def __init__(self, *, max_context_tokens: int, max_answer_tokens: int) -> None:
        self._limit = max_context_tokens
        self._answer = max_answer_tokens
        self._last = Usage()
        self._last_size = 0
        self._whole = FIRST_GUESS
        self._latest: float | None = None

    def __repr__(self) -> str:
        return f"<ContextBudget {self._last.prompt_tokens} of {self._limit}, {self.bytes_per_token:.2f} bytes a token>"

    @property
    def bytes_per_token(self) -> float:
        """Of the prompt so far or of its latest growth, whichever makes more tokens."""
        return self._whole if self._latest is None else min(self._whole, self._latest)

    def note(self, prompt: Sequence[Message], usage: Usage) -> None:
        """Learn from an answered request: what was sent, and what the server counted."""
        size = sum(len(encoded(message)) for message in prompt)
        if usage.prompt_tokens:
            self._whole = _bounded(size / usage.prompt_tokens)
            grown = size - self._last_size, usage.prompt_tokens - self._last.prompt_tokens
            if self._last.prompt_tokens and grown[0] >= _TELLING_BYTES and grown[1] > 0:
                self._latest = _bounded(grown[0] / grown[1])
        else:  # a server that does not count
            usage = Usage(math.ceil(size / self.bytes_per_token), usage.completion_tokens)
        self._last, self._last_size = usage, size

    def estimate(self, text: str) -> int:
        """Tokens of a text nobody counted, without a margin."""
        return math.ceil(len(text.encode("utf-8", "replace")) / self.bytes_per_token)

    def needed(self, results: Sequence[Message], summary: str) -> int:
        """Tokens up to the end of the final answer, if a summary were asked for after these results."""
        new = sum(self.estimate(str(message["content"])) for message in results)
        counted = self._last.prompt_tokens + self._last.completion_tokens
        return counted + math.ceil(SAFETY * (new + self.estimate(summary))) + self._answer + RESERVE_TOKENS

    def fits(self, history: Sequence[Message], summary: str) -> bool:
        """Whether the loop may go on. If not: take the last turn back and ask for the summary.

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
