"""What an agent is given, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolhub_agent.model import Usage

StopReason = Literal["answered", "max_turns", "context", "no_progress", "llm_failed"]


@dataclass(frozen=True, slots=True)
class Task:
    """One question. files: paths the question refers to; the tools must be able to reach them.

    ground_truth: only written into the log. attempt: which of several runs over the same question, from 1.
    """

    id: str
    question: str
    files: tuple[str, ...] = ()
    ground_truth: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended.

    answer: the boxed one, or `answer.NO_ANSWER`. summary: the whole final text. fresh_starts: attempts that were thrown
    away before this one. usage: of all requests together, sub-agents included. seconds: of the whole task.
    """

    task: Task
    status: Literal["success", "failed"]
    answer: str
    summary: str
    stopped: StopReason
    turns: int
    tool_calls: int
    rollbacks: int = 0
    fresh_starts: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    log: Path | None = None
    error: str | None = None
