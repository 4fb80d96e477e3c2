"""What a model said in a task, read from the task's log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from toolhub_agent.tasklog import MAIN, read_log
from toolhub_agent.types import Json, Message, Usage


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer that stood, and what it cost when it was recorded. Times are seconds."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[Json, ...] = ()
    usage: Usage = field(default_factory=Usage)
    ttft: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """One conversation. opening: the first message of its user. name: `main`, or `agent-<name>_<n>`."""

    name: str
    opening: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Trajectory:
    """A task as its model went through it. note: what the log says of itself. is_finished: it has a result."""

    task_id: str
    question: str
    conversations: tuple[Recorded, ...]
    protocol: Literal["xml", "native"] = "xml"
    note: str = ""
    is_finished: bool = True

    @classmethod
    def read(cls, path: Path) -> Trajectory:
        """Read what `TaskLog` wrote. Turns that were taken back are left out, and attempts that were thrown away.

        Raises OSError, LogUnreadable.
        """
        replay = read_log(path)
        scribe = _Scribe()
        for line in path.read_bytes()[: replay.size].splitlines():
            scribe.take(json.loads(line))
        info = replay.task.get("env_info") or {}
        return cls(
            task_id=replay.task_id,
            question=str(replay.task.get("description", "")),
            conversations=tuple(scribe.recorded()),
            protocol="native" if scribe.is_native else "xml",
            note=str(info.get("note", "")),
            is_finished=replay.result is not None,
        )

    @property
    def turns(self) -> int:
        """Answers of the main agent."""
        return sum(len(recorded.answers) for recorded in self.conversations if recorded.name == MAIN)


@dataclass
class _Pages:
    """One conversation while it is read; `costs` has the record of usage beside each answer."""

    messages: list[Message] = field(default_factory=list)
    costs: list[Json | None] = field(default_factory=list)
    last_cost: Json | None = None

    def append(self, messages: Iterable[Message]) -> None:
        for message in messages:
            is_answer = message["role"] == "assistant"
            self.messages.append(message)
            self.costs.append(self.last_cost if is_answer else None)
            self.last_cost = None if is_answer else self.last_cost

    def pop(self, count: int) -> None:
        left = max(len(self.messages) - count, 0)
        del self.messages[left:], self.costs[left:]


class _Scribe:
    """Takes the records of a log in their order."""

    def __init__(self) -> None:
        self._pages: dict[str, _Pages] = {}

    def take(self, record: Json) -> None:
        kind, session = record["kind"], record.get("session", "")
        if kind == "conversation":
            self._pages[session] = _Pages()
        elif kind == "messages":
            self._of(session).append(record["messages"])
        elif kind == "popped":
            self._of(session).pop(record["count"])
        elif kind == "usage":
            self._of(session).last_cost = record

    @property
    def is_native(self) -> bool:
        return any(message.get("tool_calls") for pages in self._pages.values() for message in pages.messages)

    def recorded(self) -> Iterable[Recorded]:
        for name, pages in self._pages.items():
            opening = next((text_of(message) for message in pages.messages if message["role"] == "user"), "")
            pairs = zip(pages.messages, pages.costs, strict=True)
            answers = tuple(_answer(message, cost or {}) for message, cost in pairs if message["role"] == "assistant")
            yield Recorded(name, opening, answers)

    def _of(self, session: str) -> _Pages:
        return self._pages.setdefault(session, _Pages())


def text_of(message: Message) -> str:
    return str(message.get("content") or "")


def _answer(message: Message, cost: Json) -> Answer:
    return Answer(
        text=text_of(message),
        reasoning=str(message.get("reasoning_content") or ""),
        tool_calls=tuple(message.get("tool_calls") or ()),
        usage=Usage(_number(cost, "prompt_tokens"), _number(cost, "completion_tokens"), cost.get("cached_tokens")),
        ttft=float(cost.get("ttft") or 0.0),
        seconds=float(cost.get("seconds") or 0.0),
    )


def _number(cost: Json, name: str) -> Any:
    return cost.get(name) or 0
