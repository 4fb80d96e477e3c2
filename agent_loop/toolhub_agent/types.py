"""The values of the agent loop: frozen, without behaviour beyond reading them. Times are seconds."""

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

    index: its place in the turn. id: of the API for native calls, None for XML. raw: the arguments' text as written.
    problem: why it cannot be executed (unreadable or non-object arguments); it then becomes an error result and
    nothing is sent to any tool.
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
    """What came of a call. text: what the model shall read, uncut. seconds: of its execution alone."""

    call: ToolCall
    text: str
    is_error: bool = False
    seconds: float = 0.0
    started_early: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request as the server counted them; cached_tokens is None where it does not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None


def add_usage(one: Usage, other: Usage) -> Usage:
    """The tokens of both; cached tokens stay unknown only if neither tells them."""
    known = [usage.cached_tokens for usage in (one, other) if usage.cached_tokens is not None]
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        sum(known) if known else None,
    )


@dataclass(frozen=True, slots=True)
class EngineFields:
    """What one engine takes beside the API's own fields. Another engine may refuse a request that has them."""

    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """One piece of a streamed answer, whatever the protocol.

    tool_calls: the API's tool-call deltas as plain dicts. dispatched: a call that the server declares complete ahead
    of the stream (Dynamo's `tool_call_dispatch` event), as a plain dict of the same shape.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[Json, ...] = ()
    dispatched: Json | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer.

    tool_calls: native calls, complete, as they go into history. ttft: from sending the request that succeeded to its
    first piece; waited: for a slot and in failed attempts before that.
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
