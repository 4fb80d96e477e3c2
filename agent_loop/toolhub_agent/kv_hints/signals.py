"""What an agent says about a conversation; what a model server is asked to do about it is the adapters' matter.

The names are those of the public proposals for programmable KV caches: signals, not commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolhub_agent.types import EngineFields, Message, Usage


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the next request of a conversation begins with.

    body: every field of the request that shapes the prompt beside `messages` (model, tools, tool_choice,
    chat_template_kwargs, ...), exactly as it was sent. endpoint: the base address that served the last turn.
    """

    messages: tuple[Message, ...]
    body: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A turn ended; prompt already has the assistant's message at its end, as it will stand in history."""

    session: str
    prompt: Prompt
    usage: Usage
    ttft: float


@dataclass(frozen=True, slots=True)
class ToolWaitStarted:
    """Tools run now. tools: (server, tool) of every call, so that their durations can be predicted."""

    session: str
    tools: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ToolResultReady:
    """A call ended after `seconds`. prompt: with all results so far that are next in order; None if there is a gap."""

    session: str
    server: str
    tool: str
    seconds: float
    left: int
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class AboutToResume:
    """The next request is being sent; whatever runs for this session must get out of its way."""

    session: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The request after a tool wait was answered: what the hints gained."""

    session: str
    usage: Usage
    ttft: float


@dataclass(frozen=True, slots=True)
class HistoryRewritten:
    """The prompt was cut or replaced before its end; kept_messages of its start are as they were."""

    session: str
    kept_messages: int


@dataclass(frozen=True, slots=True)
class SessionFinal:
    """No request of this conversation will follow."""

    session: str


Signal = TurnFinished | ToolWaitStarted | ToolResultReady | AboutToResume | Resumed | HistoryRewritten | SessionFinal


class SignalSink(Protocol):
    """Takes signals at once; never raises, never waits."""

    def signal(self, signal: Signal) -> None: ...


class HintSink(SignalSink, Protocol):
    """What an agent loop needs of the hints: a place for signals, and what to send with its own requests."""

    def engine_fields(self, session: str, endpoint: str) -> EngineFields: ...


class NullHints:
    """Hints that are switched off."""

    def signal(self, signal: Signal) -> None:
        pass

    def engine_fields(self, session: str, endpoint: str) -> EngineFields:
        return EngineFields()
