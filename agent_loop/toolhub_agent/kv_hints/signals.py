"""What an agent reports about a conversation. The engines' adapters decide which requests follow from it.

The names are those of the public proposals for programmable KV caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolhub_agent.types import EngineFields, Message, Usage


@dataclass(frozen=True, slots=True)
class Prompt:
    """The known beginning of a conversation's next request.

    body: every field of the request that shapes the prompt, except `messages` (model, tools, tool_choice,
    chat_template_kwargs, ...), exactly as sent. endpoint: the base address that served the last turn.
    """

    messages: tuple[Message, ...]
    body: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A turn ended. prompt: ends with the assistant's message as it will stand in history."""

    session: str
    prompt: Prompt
    usage: Usage
    ttft: float


@dataclass(frozen=True, slots=True)
class ToolWaitStarted:
    """Tools run now. tools: (server, tool) of every call, to predict their durations."""

    session: str
    tools: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ToolResultReady:
    """A call ended after `seconds`.

    prompt: with the results so far, in call order; None if one in between is missing.
    """

    session: str
    server: str
    tool: str
    seconds: float
    left: int
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class AboutToResume:
    """The next request is being sent. A prefetch of this session must stop."""

    session: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The request was answered. After a tool wait, usage and ttft show what the hints gained."""

    session: str
    usage: Usage
    ttft: float


@dataclass(frozen=True, slots=True)
class HistoryRewritten:
    """The prompt was cut or replaced before its end. kept_messages: how many messages from the start are unchanged."""

    session: str
    kept_messages: int


@dataclass(frozen=True, slots=True)
class SessionFinal:
    """The conversation will send no more requests."""

    session: str


Signal = TurnFinished | ToolWaitStarted | ToolResultReady | AboutToResume | Resumed | HistoryRewritten | SessionFinal


class SignalSink(Protocol):
    """Takes signals. It never raises and never waits."""

    def signal(self, signal: Signal) -> None: ...


class HintSink(SignalSink, Protocol):
    """The hints as an agent loop uses them: it reports signals, and asks what to add to its own requests."""

    def engine_fields(self, session: str, endpoint: str) -> EngineFields: ...


class NullHints:
    """Hints that are switched off."""

    def signal(self, signal: Signal) -> None:
        pass

    def engine_fields(self, session: str, endpoint: str) -> EngineFields:
        return EngineFields()
