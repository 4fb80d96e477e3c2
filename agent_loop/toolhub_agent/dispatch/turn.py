"""The values around one turn of calls: what is executed, and what is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from toolhub_agent.model import Json, ToolCall, ToolOutcome

Execute = Callable[[ToolCall], Awaitable[ToolOutcome]]


@dataclass(frozen=True, slots=True)
class Started:
    """A call is being executed now. early: the model was still writing."""

    call: ToolCall
    early: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """A call has its outcome; none comes for a call that was cancelled."""

    outcome: ToolOutcome


Event = Started | Finished


@dataclass(frozen=True, slots=True)
class TurnCalls:
    """The calls of a finished turn.

    calls: in order, with corrected names. native: the API's tool calls, as they go into history. problem: a call was
    begun and never completed. format_error: there is not even one complete call. is_void: nothing was run, or what
    had run was cancelled: because of the problem, or because `cancel()` was called.
    """

    calls: tuple[ToolCall, ...] = ()
    native: tuple[Json, ...] = ()
    problem: str | None = None
    format_error: bool = False
    is_void: bool = False
