"""The values of the agent loop: frozen, with no behaviour except reading. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Json = dict[str, Any]
Message = dict[str, Any]
"""One message of the OpenAI chat format."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model wrote it.

    index: its place in the turn. id: from the API for native calls, None for XML. raw: the arguments' text as written.
    problem: why it cannot be executed (unreadable or non-object arguments); it then becomes an error result and no tool
    is called.
    """

    index: int
    server: str
    tool: str
    arguments: Json
    id: str | None = None
    raw: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result of a call. text: what the model gets, uncut. seconds: of its execution alone."""

    call: ToolCall
    text: str
    is_error: bool = False
    seconds: float = 0.0
    started_early: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request as the server counted them. cached_tokens: None if the server does not report them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None


def add_usage(one: Usage, other: Usage) -> Usage:
    """The sum of both. Cached tokens stay None only if neither reports them."""
    known = [usage.cached_tokens for usage in (one, other) if usage.cached_tokens is not None]
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        sum(known) if known else None,
    )


@dataclass(frozen=True, slots=True)
class EngineFields:
    """The additional fields for one engine. Another engine may refuse a request that has them."""

    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """One piece of a streamed answer, whatever the protocol.

    tool_calls: the API's tool-call deltas as plain dicts. dispatched: a call that the server declares complete before
    the stream ends (Dynamo's `tool_call_dispatch` event), as a plain dict of the same shape.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[Json, ...] = ()
    dispatched: Json | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer.

    tool_calls: complete native calls, as they go into history. ttft: from sending the request that succeeded to its
    first piece. waited: for a slot and in failed attempts before that.
    """

    text: str
    reasoning: str = ""
    tool_calls: tuple[Json, ...] = ()
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    ttft: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    endpoint: str = ""
    attempts: int = 1


StopReason = Literal["answered", "max_turns", "context", "no_progress", "llm_failed"]


@dataclass(frozen=True, slots=True)
class Task:
    """One question. files: paths the question refers to; the tools must be able to reach them.

    ground_truth: only written to the log. attempt: the number of this run of the same question, from 1.
    """

    id: str
    question: str
    files: tuple[str, ...] = ()
    ground_truth: str | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended.

    answer: the boxed one, or `agent.NO_ANSWER`. summary: the whole final text. fresh_starts: attempts that were
    discarded before this one. usage: of all requests, sub-agents included. seconds: of the whole task.
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

    @property
    def calls_per_turn(self) -> float | None:
        return calls_per_turn(self.tool_calls, self.turns)


def calls_per_turn(tool_calls: int, turns: int) -> float | None:
    """Of the turns that stayed, those without a call included; None without a turn."""
    return round(tool_calls / turns, 2) if turns else None
