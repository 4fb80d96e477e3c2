"""Logs for the tests of the task's log: what a small task writes, on a clock that stands still."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolhub_agent.history import History
from toolhub_agent.tasklog import MAIN, ConversationLog, TaskLog
from toolhub_agent.types import Completion, ToolCall, ToolOutcome, Usage

# 2026-01-02 03:04:05 in UTC+8.
START = 1767294245.0


def a_log(folder: Path, task_id: str = "t1", **more) -> TaskLog:
    given: dict[str, Any] = {"description": "Who?", "clock": lambda: START} | more
    return TaskLog.create(folder, task_id, **given)


def a_history(log: TaskLog, *, session: str = MAIN, **more) -> tuple[History, ConversationLog]:
    conversation = log.conversation(session, "You search.")
    return History("You search.", journal=conversation, **more), conversation


def a_turn(
    history: History, conversation: ConversationLog, number: int, *, result: str = "found", stop_before_results=False
) -> None:
    """One turn with one call, as the loop records it."""
    call = ToolCall(0, "web", "google_search", {"q": f"query {number}"}, id=f"id{number}")
    completion = Completion(f"turn {number}", usage=Usage(100 * number, 10, 90 * number), ttft=0.5, seconds=2)
    conversation.answered(number, completion)
    history.append_assistant(completion)
    conversation.call_started(number, call)
    outcome = ToolOutcome(call, result, seconds=0.25)
    if not stop_before_results:
        conversation.call_finished(number, outcome)
        history.append_results([outcome])


def a_task(folder: Path, turns: int = 2, **more) -> TaskLog:
    """A log of so many turns, without a result."""
    log = a_log(folder, **more)
    history, conversation = a_history(log)
    history.append_user("Who?")
    for number in range(1, turns + 1):
        a_turn(history, conversation, number)
    return log
