"""What a reader of calls says at the end of a turn."""

from __future__ import annotations

from dataclasses import dataclass

from toolhub_agent.model import ToolCall


@dataclass(frozen=True, slots=True)
class ParseEnd:
    """The end of a turn's text.

    calls: those that only the end completed. problem: a call was begun and never completed, or there is a call's tag
    without a call. format_error: such a turn has no call at all, which MiroFlow takes back and samples again.
    """

    calls: tuple[ToolCall, ...] = ()
    problem: str | None = None
    format_error: bool = False
