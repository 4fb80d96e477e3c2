"""What people see of a task."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from toolhub_agent.sweep import row_of, summary
from toolhub_agent.types import Completion, Task, TaskResult, ToolCall, ToolOutcome, Usage
from toolhub_agent.view import SweepView, TaskView, result_panel, summary_table

pytestmark = pytest.mark.quick


def seen(*tables, **doings) -> str:
    told = io.StringIO()
    console = Console(file=told, width=120, highlight=False)
    view = TaskView(console)
    with view:
        for method, arguments in doings.items():
            getattr(view, method)(*arguments)
    for table in tables:
        console.print(table)
    return told.getvalue()


def a_result(**fields) -> TaskResult:
    return TaskResult(
        **{
            "task": Task("a", "Q"), "status": "success", "answer": "42", "summary": "", "stopped": "answered",
            "turns": 2, "tool_calls": 1, "usage": Usage(2000, 50, 1500), **fields,
        }
    )  # fmt: skip


def test_a_turn_shows_its_time_to_first_token_and_what_was_cached():
    completion = Completion("I look.", usage=Usage(1234, 56, 1024), ttft=0.31, seconds=1.2)
    told = seen(answered=("main", 3, completion, None))
    assert "turn 3" in told and "TTFT 0.31 s" in told and "1,234 tokens in, 1,024 cached, 56 out" in told


def test_a_turn_that_was_rolled_back_says_why():
    assert "turn 3 rolled back: asked before" in seen(answered=("main", 2, None, "asked before"))


def test_a_sweep_says_how_many_agents_are_paused_and_why():
    told = io.StringIO()
    with SweepView(Console(file=told, width=160, highlight=False, force_terminal=True), total=5, done=0) as view:
        view.done(row_of(1, a_result()))
        view.note_pauses(["12 s: the cache is full, 96% of the cache in use", "3 s: older programs fill the cache"])
    assert "1 answered, 0 failed; 2 paused, one for 12 s: the cache is full, 96% of the cache in use" in told.getvalue()


def test_a_call_shows_its_time_and_that_it_began_early():
    call = ToolCall(0, "web", "search", {"q": "x"})
    told = seen(called=("main", ToolOutcome(call, "found", seconds=0.5, started_early=True)))
    assert 'web/search {"q": "x"}' in told and "0.50 s, 5 characters, started early" in told


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b2J", "\x07", "[bold]x[/]"])
def test_what_a_model_writes_is_shown_and_never_obeyed(hostile):
    call = ToolCall(0, "web", hostile, {hostile: hostile})
    told = seen(
        result_panel(a_result(answer=hostile, error=hostile)),
        answered=("main", 1, Completion(hostile + " text"), None),
        called=("main", ToolOutcome(call, hostile)),
    )
    assert "\x1b" not in told and "\x9b" not in told and "\x07" not in told
    assert told.count("[bold]x[/]") == (6 if hostile.startswith("[") else 0)


def test_the_end_of_a_task_and_of_a_sweep_are_sums():
    told = seen(result_panel(a_result()), summary_table(summary([row_of(1, a_result()), row_of(1, a_result())])))
    assert "2,000 in (75% from the server's cache), 50 out" in told
    assert "2: 2 answered, 0 failed" in told and "4,000 in, 100 out, 75% of the prompt cached" in told
