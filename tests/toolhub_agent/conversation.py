"""Pieces of conversations for the tests of the agent loop's context and log."""

from __future__ import annotations

from toolhub_agent.history import History
from toolhub_agent.types import Completion, Message, ToolCall, ToolOutcome, Usage


def a_call(index: int = 0, *, tool: str = "search", server: str = "web", **more) -> ToolCall:
    return ToolCall(index, server, tool, more.pop("arguments", {"q": f"query {index}"}), **more)


def an_outcome(text: str = "found", *, index: int = 0, is_error: bool = False, **more) -> ToolOutcome:
    return ToolOutcome(a_call(index, **more), text, is_error, seconds=0.25)


def an_answer(text: str = "I search.", **more) -> Completion:
    return Completion(text, usage=more.pop("usage", Usage(100, 10, 80)), **more)


def native_answer(*ids: str) -> Completion:
    calls = tuple(
        {"id": name, "type": "function", "function": {"name": "web-search", "arguments": "{}"}} for name in ids
    )
    return an_answer("", tool_calls=calls)


def after_turns(turns: int, *, result: str = "result") -> History:
    """A conversation of so many turns with one result each, numbered from 1."""
    history = History("You search.")
    history.append_user("task")
    for number in range(1, turns + 1):
        history.append_assistant(an_answer(f"turn {number}"))
        history.append_results([an_outcome(f"{result} {number}")])
    return history


def contents(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages]
