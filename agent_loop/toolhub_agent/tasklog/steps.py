"""The steps of MiroFlow's task log, with the names its viewers look for, made of records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from toolhub_agent.tasklog.names import MAIN
from toolhub_agent.types import Json

_TOOL_MANAGER = "ToolManager | Tool Call"
# Of a subtask, in the line that announces it.
_SUBTASK_CHARS = 100

# The first match wins, so a call's own steps come before the agent whose they are.
_ICONS = (
    ("Tool Call Start", "▶️ "),
    ("Tool Call Success", "✅ "),
    ("Tool Call Error", "❌ "),
)
_LATER_ICONS = (
    ("agent-", "🤖 "),
    ("Main Agent", "👑 "),
    ("LLM", "🧠 "),
    ("ToolManager", "🔧 "),
    ("Tool Call", "🔧 "),
)
_SERVER_ICONS = (
    ("tool-python", "🐍 "),
    ("tool-google-search", "🔍 "),
    ("tool-browser", "🌐 "),
    ("playwright", "🌐 "),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the log for people. at: seconds since the epoch. name: without its icon."""

    at: float
    level: str
    name: str
    message: str
    metadata: Json = field(default_factory=dict)
    is_derived: bool = False
    """Made of a record, not logged by anyone."""


def icon_of(level: str, name: str) -> str:
    """The icon, with a blank, that MiroFlow puts before a step's name; empty if none fits."""
    lower = name.lower()
    for part, icon in _ICONS:
        if part in name:
            return icon
    if level == "error" and "tool" in lower:
        return "❌ "
    for part, icon in _LATER_ICONS:
        if part in name:
            return icon
    return next((icon for part, icon in _SERVER_ICONS if part in lower), "")


def without_doubles(steps: list[Step]) -> list[Step]:
    """Without the derived steps of calls, where a `ToolManager` logged its own."""
    if not any(step.name.startswith(_TOOL_MANAGER) and not step.is_derived for step in steps):
        return steps
    return [step for step in steps if not (step.is_derived and step.name.startswith(_TOOL_MANAGER))]


def steps_of(record: Json) -> list[Step]:
    """The steps a record stands for."""
    kind, at = record["kind"], float(record.get("at", 0))
    if kind == "step":
        return [Step(at, record["level"], record["name"], record["message"], record["metadata"])]
    return [Step(at, *step, is_derived=True) for step in _derived(kind, record)]


def _derived(kind: str, record: Json) -> Iterator[tuple[str, str, str, Json]]:
    if kind == "task":
        yield "info", "Main Agent", f"Start task with id: {record['task_id']}", {}
        yield "info", "Main Agent", f"Task description: {record.get('description', '')}", {}
    elif kind == "usage":
        yield "info", f"{_turn(record)} | LLM Call", "completed successfully", _costs(record)
    elif kind == "call_started":
        yield from _started(record)
    elif kind == "call_finished":
        yield from _finished(record)
    elif kind == "sub_agent_started":
        yield _session_start(record)
    elif kind == "sub_agent_ended":
        about = {"session_id": record["session"]}
        yield "info", f"{record['name']} | Session End", f"Ending {record['session']}", about
    elif kind == "attempt_ended":
        yield "warning", "Main Agent | Attempt Ended", f"Attempt {record['number']}: {record['reason']}", {}
    elif kind == "resumed":
        yield "info", "Main Agent | Resumed", "Resumed from the log of a run that ended early", {}
    elif kind == "result":
        yield from _result(record)


def _started(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    server, tool = record["server"], record["tool"]
    yield "info", f"{_turn(record)} | Tool Call", f"Executing {tool} on {server}", {}
    message = f"Connecting to server '{server}' to call tool '{tool}'"
    yield "info", f"{_TOOL_MANAGER} Start", message, {"arguments": record["arguments"]}


def _finished(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    server, tool, error = record["server"], record["tool"], record["error"]
    if error is None:
        yield "info", f"{_TOOL_MANAGER} Success", f"Tool '{tool}' (server: '{server}') called successfully.", {}
        taken = f"Tool {tool} completed in {int(record['seconds'] * 1000)}ms"
        yield "info", f"{_turn(record)} | Tool Call", taken, {}
    else:
        message = f"Error: Failed to call tool '{tool}' (server: '{server}'): {error}"
        yield "error", f"{_TOOL_MANAGER} Failed", message, {}
        yield "error", f"{_turn(record)} | Tool Call", f"Tool {tool} failed to execute: {error}", {}


def _session_start(record: Json) -> tuple[str, str, str, Json]:
    session, subtask = record["session"], record["subtask"]
    shown = subtask if len(subtask) <= _SUBTASK_CHARS else subtask[:_SUBTASK_CHARS] + "..."
    message = f"Starting {session} for subtask: {shown}"
    return "info", f"{record['name']} | Session Start", message, {"session_id": session, "subtask": subtask}


def _result(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    yield "info", "Main Agent | Final boxed answer", f"Final boxed answer:\n\n{record['answer']}", {}
    if record["status"] == "success":
        yield "info", "Main Agent | Task Completed", "Main agent task completed successfully", {}
    else:
        yield "error", "Main Agent | Task Failed", record["error"], {}


def _turn(record: Json) -> str:
    session = record["session"]
    agent = "Main Agent" if session == MAIN else session.rsplit("_", 1)[0]
    return f"{agent} | Turn: {record['turn']}"


def _costs(record: Json) -> Json:
    return {
        "input_tokens": record["prompt_tokens"],
        "output_tokens": record["completion_tokens"],
        "cache_read_tokens": record["cached_tokens"],
        "ttft_ms": int(record["ttft"] * 1000),
        "duration_ms": int(record["seconds"] * 1000),
        "endpoint": record["endpoint"],
    }
