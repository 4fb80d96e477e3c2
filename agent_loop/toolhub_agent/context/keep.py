"""Which results of tools the model is still shown, and what that costs in the server's prefix cache.

Exact keep-K replaces one more result at every turn, in the middle of the prompt, and everything after that place has
to be computed again. In strides the prompt grows from K to K + s results untouched and is then cut back to K at once:
s of s + 1 turns only append. Which results are left out depends on their number alone, so a resumed task is shown the
same prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolhub_agent.model import Message

OMITTED = "Tool result is omitted to save tokens."
ALL = -1


@dataclass(frozen=True, slots=True)
class View:
    """A prompt. kept: how many of its first messages are those of the view before. omitted: turns without results.

    is_rewritten: the view before was not just continued, so that a server's cache of it ends after `kept` messages.
    """

    messages: list[Message]
    kept: int
    omitted: int
    is_rewritten: bool


class KeepResults:
    """One conversation's views. The system prompt, the first user message and the model's answers always stay."""

    def __init__(self, keep: int, stride: int = 0) -> None:
        """keep: turns whose results stay, ALL for every one. stride: turns that are added before the next cut.

        0 for keep means 1: a result the model has not seen even once would be no result.
        """
        if keep < ALL or stride < 0:
            raise ValueError(f"keep must be at least -1 and stride at least 0, not {keep} and {stride}")
        self._keep = keep if keep == ALL else max(keep, 1)
        self._stride = stride
        self._last: list[Message] = []

    def __repr__(self) -> str:
        return f"<KeepResults {'all' if self._keep == ALL else self._keep}, stride {self._stride}>"

    def view(self, messages: Sequence[Message]) -> View:
        """What the model is shown of a history. The messages themselves are not changed."""
        turns = result_turns(messages)
        omitted = self._omitted(len(turns))
        shown = list(messages)
        for place in (place for turn in turns[:omitted] for place in turn):
            shown[place] = {**messages[place], "content": OMITTED}
        last, self._last = self._last, shown
        kept = _common(last, shown)
        return View(list(shown), kept, omitted, kept < len(last))

    def _omitted(self, turns: int) -> int:
        if self._keep == ALL:
            return 0
        step = self._stride + 1
        return max(turns - self._keep, 0) // step * step


def result_turns(messages: Sequence[Message]) -> list[list[int]]:
    """The places of each turn's results. The first user message is the task, all others and those of tools are results.

    A request for a summary counts as one too: it takes the last result's place, and counting it keeps the prefix.
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


def _common(old: Sequence[Message], new: Sequence[Message]) -> int:
    for place, (was, now) in enumerate(zip(old, new, strict=False)):
        if was is not now and was != now:
            return place
    return min(len(old), len(new))
