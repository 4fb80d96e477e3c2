"""Reads a task's log: the conversations as they were, their cost, and MiroFlow's steps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from toolhub_agent.errors import AgentError
from toolhub_agent.types import Json, Message, ToolCall, Usage, add_usage

# --- Times and file names ---------------------------------------------------------------------------------------------
# In the form that MiroFlow's tools expect.

MAIN = "main"
"""The main agent's conversation. A sub-agent's is `<name>_<n>`."""

# MiroFlow always writes the time of this zone.
_ZONE = timezone(timedelta(hours=8))
# A file name may have 255 bytes. The rest of the name takes less than 40.
_LONGEST_ID = 200
# A task's id comes from a data set. It must not name another folder or end a line in a listing.
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def clock_text(seconds: float) -> str:
    """``YYYY-mm-dd HH:MM:SS`` in UTC+8. seconds: since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).astimezone(_ZONE).strftime("%Y-%m-%d %H:%M:%S")


def full_id(task_id: str, attempt: int | None) -> str:
    """The id of one attempt in the form by which MiroFlow's runner resumes; the plain id without an attempt."""
    return task_id if attempt is None else f"{task_id}_attempt-{attempt}_format-retry-0"


def file_stem(full: str, start_time: str) -> str:
    """``task_<id>_<YYYY-mm-dd-HH-MM-SS>``, without a suffix."""
    return f"task_{_safe_id(full)}_{re.sub('[ :.]', '-', start_time)}"


def logs_of_task(folder: Path, task_id: str) -> list[Path]:
    """The logs in a folder whose names begin like those of this task. Some may be of a task with a longer id."""
    return [path for path in folder.glob("task_*.jsonl") if path.name.startswith(f"task_{_safe_id(task_id)}_")]


def _safe_id(full: str) -> str:
    return _UNSAFE.sub("-", full).encode("utf-8", "replace")[:_LONGEST_ID].decode("utf-8", "ignore")


# --- MiroFlow's steps -------------------------------------------------------------------------------------------------
# Builds the steps of MiroFlow's task log from records, with the names that its viewers expect.

_TOOL_MANAGER = "ToolManager | Tool Call"
# How much of a subtask the line that announces it shows.
_SUBTASK_CHARS = 100

# The first match wins, so a call's own steps come before those of its agent.
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
    """Whether the step was derived from a record instead of logged."""


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
    """The steps without the derived ones of calls that a `ToolManager` logged itself."""
    if not any(step.name.startswith(_TOOL_MANAGER) and not step.is_derived for step in steps):
        return steps
    return [step for step in steps if not (step.is_derived and step.name.startswith(_TOOL_MANAGER))]


def steps_of(record: Json) -> list[Step]:
    """The steps of a record."""
    kind, at = record["kind"], float(record.get("at", 0))
    if kind == "step":
        return [Step(at, record["level"], record["name"], record["message"], record["metadata"])]
    return [Step(at, *step, is_derived=True) for step in _derived_steps(kind, record)]


def _derived_steps(kind: str, record: Json) -> Iterator[tuple[str, str, str, Json]]:
    if kind == "task":
        yield "info", "Main Agent", f"Start task with id: {record['task_id']}", {}
        yield "info", "Main Agent", f"Task description: {record.get('description', '')}", {}
    elif kind == "usage":
        yield "info", f"{_turn_name(record)} | LLM Call", "completed successfully", _cost_fields(record)
    elif kind == "call_started":
        yield from _call_started_steps(record)
    elif kind == "call_finished":
        yield from _call_finished_steps(record)
    elif kind == "turn_dropped":
        yield from _turn_dropped_steps(record)
    elif kind == "sub_agent_started":
        yield _session_start_step(record)
    elif kind == "sub_agent_ended":
        about = {"session_id": record["session"]}
        yield "info", f"{record['name']} | Session End", f"Ending {record['session']}", about
    elif kind == "attempt_ended":
        yield "warning", "Main Agent | Attempt Ended", f"Attempt {record['number']}: {record['reason']}", {}
    elif kind == "resumed":
        yield "info", "Main Agent | Resumed", "Resumed from the log of a run that ended early", {}
    elif kind == "result":
        yield from _result_steps(record)


def _call_started_steps(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    server, tool = record["server"], record["tool"]
    yield "info", f"{_turn_name(record)} | Tool Call", f"Executing {tool} on {server}", {}
    message = f"Connecting to server '{server}' to call tool '{tool}'"
    yield "info", f"{_TOOL_MANAGER} Start", message, {"arguments": record["arguments"]}


def _call_finished_steps(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    server, tool, error = record["server"], record["tool"], record["error"]
    if error is None:
        yield "info", f"{_TOOL_MANAGER} Success", f"Tool '{tool}' (server: '{server}') called successfully.", {}
        taken = f"Tool {tool} completed in {int(record['seconds'] * 1000)}ms"
        yield "info", f"{_turn_name(record)} | Tool Call", taken, {}
    else:
        message = f"Error: Failed to call tool '{tool}' (server: '{server}'): {error}"
        yield "error", f"{_TOOL_MANAGER} Failed", message, {}
        yield "error", f"{_turn_name(record)} | Tool Call", f"Tool {tool} failed to execute: {error}", {}


def _turn_dropped_steps(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    for call in record["cancelled"]:
        message = f"Tool '{call['tool']}' (server: '{call['server']}') was cancelled with its turn"
        yield "info", f"{_TOOL_MANAGER} Cancelled", message, {}
    yield "warning", f"{_turn_name(record)} | Dropped", f"Nothing of this turn stays: {record['reason']}", {}


def _session_start_step(record: Json) -> tuple[str, str, str, Json]:
    session, subtask = record["session"], record["subtask"]
    shown = subtask if len(subtask) <= _SUBTASK_CHARS else subtask[:_SUBTASK_CHARS] + "..."
    message = f"Starting {session} for subtask: {shown}"
    return "info", f"{record['name']} | Session Start", message, {"session_id": session, "subtask": subtask}


def _result_steps(record: Json) -> Iterator[tuple[str, str, str, Json]]:
    yield "info", "Main Agent | Final boxed answer", f"Final boxed answer:\n\n{record['answer']}", {}
    if turns := record.get("turns"):
        counts = {name: record[name] for name in ("turns", "tool_calls", "calls_per_turn")}
        said = f"{turns} turns, {record['tool_calls']} tool calls, {record['calls_per_turn']} calls per turn"
        yield "info", "Main Agent | Turns", said, counts
    if record["status"] == "success":
        yield "info", "Main Agent | Task Completed", "Main agent task completed successfully", {}
    else:
        yield "error", "Main Agent | Task Failed", record["error"], {}


def _turn_name(record: Json) -> str:
    session = record["session"]
    agent = "Main Agent" if session == MAIN else session.rsplit("_", 1)[0]
    return f"{agent} | Turn: {record['turn']}"


def _cost_fields(record: Json) -> Json:
    return {
        "input_tokens": record["prompt_tokens"],
        "output_tokens": record["completion_tokens"],
        "cache_read_tokens": record["cached_tokens"],
        "ttft_ms": int(record["ttft"] * 1000),
        "duration_ms": int(record["seconds"] * 1000),
        "endpoint": record["endpoint"],
    }


# --- The log ----------------------------------------------------------------------------------------------------------
# Reads a task's log: the conversations as they were, their cost, and the steps for people.


class LogUnreadable(AgentError, ValueError):
    """The file is not a task's log. Start the task again without it."""


@dataclass
class LoggedConversation:
    """One conversation as it was when the log ended. messages: without the system prompt."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    costs: list[Json] = field(default_factory=list)
    """The usage record of each message that is an answer; {} for the others, and for an answer without one."""
    usage: Usage = field(default_factory=Usage)
    """The sum over all requests."""
    started: list[ToolCall] = field(default_factory=list)
    """Calls without a result in the history: they had run or were running when the log ended."""
    _settled: list[tuple[int, list[ToolCall]]] = field(default_factory=list)
    _last_cost: Json = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """The number of the model's answers in the history."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def calls(self) -> list[ToolCall]:
        """Calls whose results are in the history, to detect repeated queries."""
        return [call for _, calls in self._settled for call in calls]

    @property
    def is_mid_turn(self) -> bool:
        """Whether the last answer's results are missing. Before going on, remove that turn (`History.pop_turn`)."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def append(self, messages: list[Message]) -> None:
        if self.started and messages and messages[0]["role"] in ("user", "tool"):
            self._settled.append((len(self.messages), self.started))
            self.started = []
        for message in messages:
            is_answer = message["role"] == "assistant"
            self.messages.append(message)
            self.costs.append(self._last_cost if is_answer else {})
            self._last_cost = {} if is_answer else self._last_cost

    def pop(self, count: int) -> None:
        left = max(len(self.messages) - count, 0)
        del self.messages[left:], self.costs[left:]
        self._settled = [(place, calls) for place, calls in self._settled if place < left]
        self.started = []

    def charge(self, record: Json) -> Usage:
        """Add the usage of a request."""
        self._last_cost = record
        usage = Usage(record["prompt_tokens"], record["completion_tokens"], record["cached_tokens"])
        self.usage = add_usage(self.usage, usage)
        return usage


@dataclass
class TaskRecord:
    """The content of a log. is_whole: False if it ended within a record, which is then left out.

    size: bytes of the complete records.
    """

    task: Json
    conversations: dict[str, LoggedConversation] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    """Of all conversations, with those of earlier attempts."""
    steps: list[Step] = field(default_factory=list)
    attempts: list[Json] = field(default_factory=list)
    """Records of the attempts that ended without a result."""
    result: Json | None = None
    verdict: Json | None = None
    sub_agents: dict[str, str] = field(default_factory=dict)
    """The running sub-agents: session -> name."""
    sub_agent_counter: int = 0
    is_whole: bool = True
    size: int = 0

    @property
    def task_id(self) -> str:
        return str(self.task["task_id"])

    @property
    def fingerprint(self) -> str:
        return str(self.task.get("fingerprint", ""))

    @property
    def main(self) -> LoggedConversation:
        """The main agent's conversation of the current attempt; empty if it had not begun."""
        return self.conversations.get(MAIN) or LoggedConversation()

    def take(self, record: Json) -> None:
        """Add one record. Unknown kinds, of a later version, are ignored."""
        if (handler := _HANDLERS.get(record["kind"])) is not None:
            handler(self, record)
        self.steps += steps_of(record)

    def _of(self, record: Json) -> LoggedConversation:
        return self.conversations.setdefault(record["session"], LoggedConversation())

    def _conversation(self, record: Json) -> None:
        self.conversations[record["session"]] = LoggedConversation(record["system"])

    def _messages(self, record: Json) -> None:
        self._of(record).append(record["messages"])

    def _popped(self, record: Json) -> None:
        self._of(record).pop(record["count"])

    def _usage(self, record: Json) -> None:
        self.usage = add_usage(self.usage, self._of(record).charge(record))

    def _call_started(self, record: Json) -> None:
        names = ("index", "server", "tool", "arguments", "id", "problem")
        self._of(record).started.append(ToolCall(**{name: record[name] for name in names}))

    def _turn_dropped(self, record: Json) -> None:
        self._of(record).started = []

    def _sub_agent_started(self, record: Json) -> None:
        self.sub_agent_counter += 1
        self.sub_agents[record["session"]] = record["name"]

    def _sub_agent_ended(self, record: Json) -> None:
        self.sub_agents.pop(record["session"], None)

    def _attempt_ended(self, record: Json) -> None:
        self.attempts.append(record)
        self.conversations.pop(MAIN, None)

    def _resumed(self, record: Json) -> None:
        self.sub_agents.clear()  # they ended with their process

    def _result(self, record: Json) -> None:
        self.result = record

    def _judged(self, record: Json) -> None:
        self.verdict = record


_HANDLERS: dict[str, Callable[[TaskRecord, Json], None]] = {
    "conversation": TaskRecord._conversation,
    "messages": TaskRecord._messages,
    "popped": TaskRecord._popped,
    "usage": TaskRecord._usage,
    "call_started": TaskRecord._call_started,
    "turn_dropped": TaskRecord._turn_dropped,
    "sub_agent_started": TaskRecord._sub_agent_started,
    "sub_agent_ended": TaskRecord._sub_agent_ended,
    "attempt_ended": TaskRecord._attempt_ended,
    "resumed": TaskRecord._resumed,
    "result": TaskRecord._result,
    "judged": TaskRecord._judged,
}
LOST = "lost"
"""Replaces a record that could not be written as JSON. Later records may not fit earlier ones."""


def read_log(path: Path) -> TaskRecord:
    """The log's content up to its first incomplete record. Raises OSError, LogUnreadable."""
    records = _parse_records(path)
    first, size = next(records, (None, 0))
    if first is None or first["kind"] != "task" or "task_id" not in first:
        raise LogUnreadable(f"{path} is not the log of a task: its first record is not a task")
    task = TaskRecord(first, size=size)
    task.steps += steps_of(first)
    for record, size in records:
        if record is None or record["kind"] == LOST:
            task.is_whole = False
            break
        try:
            task.take(record)
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            raise LogUnreadable(f"{path}: a record {record['kind']!r} has an unknown form: {exc!r}") from exc
        task.size += size
    return task


def _parse_records(path: Path) -> Iterator[tuple[Any, int]]:
    """Every record and its size in bytes; None for a line that is not a record."""
    with path.open("rb") as lines:
        for line in lines:
            yield _parse_record(line), len(line)


def _parse_record(line: bytes) -> Json | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None
