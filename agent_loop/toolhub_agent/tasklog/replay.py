"""Reading a task's log back: the conversations as they stood, what they cost, and the steps that people look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolhub_agent.errors import AgentError
from toolhub_agent.tasklog.names import MAIN
from toolhub_agent.tasklog.steps import Step, steps_of
from toolhub_agent.types import Json, Message, ToolCall, Usage, add_usage


class LogUnreadable(AgentError, ValueError):
    """The file is no task's log; start the task anew."""


@dataclass
class Conversation:
    """One conversation of a task as it stood when the log ended. messages: without the system prompt."""

    system: str = ""
    messages: list[Message] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    """Summed over all requests; of the last request: `last_usage`."""
    last_usage: Usage = field(default_factory=Usage)
    rollbacks: int = 0
    started: list[ToolCall] = field(default_factory=list)
    """Calls whose results are not in the history: they ran, or were running, when the log ended."""
    _settled: list[tuple[int, list[ToolCall]]] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """Answers of the model that stand."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def calls(self) -> list[ToolCall]:
        """Those whose results stand in the history, for the rule against asking twice."""
        return [call for _, calls in self._settled for call in calls]

    @property
    def is_mid_turn(self) -> bool:
        """The last answer's results are missing. To go on, take that turn back (`History.pop_turn`)."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def append(self, messages: list[Message]) -> None:
        if self.started and messages and messages[0]["role"] in ("user", "tool"):
            self._settled.append((len(self.messages), self.started))
            self.started = []
        self.messages += messages

    def pop(self, count: int) -> None:
        left = max(len(self.messages) - count, 0)
        if any(message["role"] == "assistant" for message in self.messages[left:]):
            self.rollbacks += 1
        del self.messages[left:]
        self._settled = [(place, calls) for place, calls in self._settled if place < left]
        self.started = []

    def charge(self, usage: Usage) -> None:
        self.last_usage = usage
        self.usage = add_usage(self.usage, usage)


@dataclass
class Replay:
    """Everything a log says. is_whole: False if it ended in the middle of a record, which is then left out.

    size: bytes of the records that are in.
    """

    task: Json
    conversations: dict[str, Conversation] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    """Of all conversations, those of earlier attempts among them."""
    steps: list[Step] = field(default_factory=list)
    attempts: list[Json] = field(default_factory=list)
    """Records of the attempts that ended without a result."""
    result: Json | None = None
    verdict: Json | None = None
    sub_agents: dict[str, str] = field(default_factory=dict)
    """Running ones: session -> name."""
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
    def main(self) -> Conversation:
        """The main agent's, of the current attempt; empty if it had not begun."""
        return self.conversations.get(MAIN) or Conversation()

    def take(self, record: Json) -> None:
        """Add one record. Kinds of a later version are passed over."""
        if (handler := _HANDLERS.get(record["kind"])) is not None:
            handler(self, record)
        self.steps += steps_of(record)

    def _of(self, record: Json) -> Conversation:
        return self.conversations.setdefault(record["session"], Conversation())

    def _conversation(self, record: Json) -> None:
        self.conversations[record["session"]] = Conversation(record["system"])

    def _messages(self, record: Json) -> None:
        self._of(record).append(record["messages"])

    def _popped(self, record: Json) -> None:
        self._of(record).pop(record["count"])

    def _usage(self, record: Json) -> None:
        usage = Usage(record["prompt_tokens"], record["completion_tokens"], record["cached_tokens"])
        self._of(record).charge(usage)
        self.usage = add_usage(self.usage, usage)

    def _call_started(self, record: Json) -> None:
        names = ("index", "server", "tool", "arguments", "id", "problem")
        self._of(record).started.append(ToolCall(**{name: record[name] for name in names}))

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


_HANDLERS: dict[str, Callable[[Replay, Json], None]] = {
    "conversation": Replay._conversation,
    "messages": Replay._messages,
    "popped": Replay._popped,
    "usage": Replay._usage,
    "call_started": Replay._call_started,
    "sub_agent_started": Replay._sub_agent_started,
    "sub_agent_ended": Replay._sub_agent_ended,
    "attempt_ended": Replay._attempt_ended,
    "resumed": Replay._resumed,
    "result": Replay._result,
    "judged": Replay._judged,
}
LOST = "lost"
"""Stands for a record that could not be written as JSON; what follows it may not fit what precedes it."""


def read_log(path: Path) -> Replay:
    """What a log says, up to its first record that is not whole. Raises OSError, LogUnreadable."""
    records = _records(path)
    first, size = next(records, (None, 0))
    if first is None or first["kind"] != "task" or "task_id" not in first:
        raise LogUnreadable(f"{path} is no task's log: it does not begin with a task")
    replay = Replay(first, size=size)
    replay.steps += steps_of(first)
    for record, size in records:
        if record is None or record["kind"] == LOST:
            replay.is_whole = False
            break
        try:
            replay.take(record)
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            raise LogUnreadable(f"{path}: a record {record['kind']!r} has an unknown form: {exc!r}") from exc
        replay.size += size
    return replay


def _records(path: Path) -> Iterator[tuple[Any, int]]:
    """Every record and its bytes; None for a line that is not one."""
    with path.open("rb") as lines:
        for line in lines:
            yield _record(line), len(line)


def _record(line: bytes) -> Json | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else None
