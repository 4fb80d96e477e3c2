"""A recorded task: the model's answers, read from the task's log, and a stand-in for the model that repeats them.

The stand-in returns the answer at the same place of the recorded conversation: the place is the number of answers in
the prompt. So a turn that is rolled back, because a tool behaves differently today, does not shift the later answers.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio

from toolhub_agent.errors import LlmRefused
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.tasklog import MAIN, LoggedConversation, read_log
from toolhub_agent.types import Completion, Delta, Json, Message, Usage

# --- The recording ----------------------------------------------------------------------------------------------------
# The model's answers in a task, read from the task's log.


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer that stood, and what it cost when it was recorded. Times are seconds."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[Json, ...] = ()
    usage: Usage = field(default_factory=Usage)
    ttft: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedConversation:
    """One conversation. opening: the first message of its user. name: `main`, or `agent-<name>_<n>`."""

    name: str
    opening: str
    answers: tuple[RecordedAnswer, ...]


@dataclass(frozen=True)
class Trajectory:
    """A task as the model saw it. note: the log's description of itself. is_finished: the task has a result."""

    task_id: str
    question: str
    conversations: tuple[RecordedConversation, ...]
    protocol: Literal["xml", "native"] = "xml"
    note: str = ""
    is_finished: bool = True

    @classmethod
    def read(cls, path: Path) -> Trajectory:
        """Read a log of `TaskLog`, without turns that were rolled back and attempts that were discarded.

        Raises OSError, LogUnreadable.
        """
        log = read_log(path)
        info = log.task.get("env_info") or {}
        messages = (message for logged in log.conversations.values() for message in logged.messages)
        return cls(
            task_id=log.task_id,
            question=str(log.task.get("description", "")),
            conversations=tuple(_recorded(name, logged) for name, logged in log.conversations.items()),
            protocol="native" if any(message.get("tool_calls") for message in messages) else "xml",
            note=str(info.get("note", "")),
            is_finished=log.result is not None,
        )

    @property
    def turns(self) -> int:
        """The number of the main agent's answers."""
        return sum(len(recorded.answers) for recorded in self.conversations if recorded.name == MAIN)


def _recorded(name: str, logged: LoggedConversation) -> RecordedConversation:
    opening = next((content_text(message) for message in logged.messages if message["role"] == "user"), "")
    pairs = zip(logged.messages, logged.costs, strict=True)
    answers = tuple(_recorded_answer(message, cost) for message, cost in pairs if message["role"] == "assistant")
    return RecordedConversation(name, opening, answers)


def content_text(message: Message) -> str:
    return str(message.get("content") or "")


def _recorded_answer(message: Message, cost: Json) -> RecordedAnswer:
    return RecordedAnswer(
        text=content_text(message),
        reasoning=str(message.get("reasoning_content") or ""),
        tool_calls=tuple(message.get("tool_calls") or ()),
        usage=Usage(_count(cost, "prompt_tokens"), _count(cost, "completion_tokens"), cost.get("cached_tokens")),
        ttft=float(cost.get("ttft") or 0.0),
        seconds=float(cost.get("seconds") or 0.0),
    )


def _count(cost: Json, name: str) -> Any:
    return cost.get(name) or 0


# --- The model's stand-in ---------------------------------------------------------------------------------------------
# Takes the place of the loop's client of model servers.
ENDPOINT = "recording"
# About two tokens, so that calls start while the rest of the answer is still coming.
_PIECE_CHARS = 8
# The end of a sub-agent's session name, after the main agent's name.
_SUB_AGENT = re.compile(r"-(agent-.+)_(\d+)-[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True)
class PlaybackPace:
    """The longest recorded times that are replayed, in seconds. Longer ones are shortened."""

    longest_ttft: float = 0.5
    longest_writing: float = 3.0


class ReplayLlm:
    """The part of `LlmClient` that a `Conversation` uses. ended: the first request without a recorded answer."""

    known_model: str | None = None

    def __init__(self, trajectory: Trajectory, pace: PlaybackPace | None = None) -> None:
        self.ended: list[str] = []
        self._trajectory = trajectory
        self._pace = pace or PlaybackPace()
        self._playing: dict[str, RecordedConversation] = {}
        self._left = list(trajectory.conversations)

    def __repr__(self) -> str:
        return f"<ReplayLlm {self._trajectory.task_id}, {len(self._left)} conversations not begun>"

    @asynccontextmanager
    async def stream(self, request: LlmRequest) -> AsyncIterator[RecordedStream]:
        """The recorded answer, piece by piece. Raises LlmRefused if the recording has none."""
        yield RecordedStream(self._answer(request), self._pace)

    def forget(self, session: str) -> None:
        self._playing.pop(session, None)

    def _answer(self, request: LlmRequest) -> RecordedAnswer:
        place: int = sum(message["role"] == "assistant" for message in request.messages)
        recorded = self._playing.get(request.session) or self._begin(request)
        if recorded is None or place >= len(recorded.answers):
            raise self._end(request, place)
        return recorded.answers[place]

    def _begin(self, request: LlmRequest) -> RecordedConversation | None:
        """Find a sub-agent's recording by its subtask, because sub-agents may start in another order today."""
        found = _SUB_AGENT.search(request.session)
        agent = found.group(1) if found else MAIN
        left = [one for one in self._left if _agent_name(one) == agent]
        opening = next((content_text(message) for message in request.messages if message["role"] == "user"), "")
        same = [one for one in left if one.opening == opening]
        # After an interrupted conversation there may be a complete one of the same task.
        chosen = max(same, key=lambda one: len(one.answers), default=left[0] if left and agent == MAIN else None)
        if chosen is not None:
            self._left.remove(chosen)
            self._playing[request.session] = chosen
        return chosen

    def _end(self, request: LlmRequest, place: int) -> LlmRefused:
        found = _SUB_AGENT.search(request.session)
        who = found.group(1) if found else "the agent"
        message = f"the recording ends here: it has no answer number {place + 1} of {who}"
        if not self._trajectory.is_finished:
            message += "; the recorded task did not reach its end"
        self.ended.append(message)
        return LlmRefused(message, endpoint=ENDPOINT)


class RecordedStream:
    """One answer, at the chosen pace. Iterate over it once; then `completion` is available."""

    def __init__(self, answer: RecordedAnswer, pace: PlaybackPace) -> None:
        pieces = list(_deltas(answer))
        self._answer = answer
        self._first = min(answer.ttft, pace.longest_ttft)
        self._step = min(max(answer.seconds - answer.ttft, 0.0), pace.longest_writing) / max(len(pieces) - 1, 1)
        self._pieces = enumerate(pieces)
        self._began = anyio.current_time()
        self.is_finished = False

    def __aiter__(self) -> RecordedStream:
        return self

    async def __anext__(self) -> Delta:
        number, delta = next(self._pieces, (0, None))
        if delta is None:
            self.is_finished = True
            raise StopAsyncIteration
        await anyio.sleep_until(self._began + self._first + number * self._step)
        return delta

    @property
    def completion(self) -> Completion:
        """The completion with the recorded numbers."""
        if not self.is_finished:
            raise RuntimeError("the answer has not ended; iterate over the stream first")
        answer = self._answer
        return Completion(
            text=answer.text,
            reasoning=answer.reasoning,
            tool_calls=answer.tool_calls,
            finish_reason="tool_calls" if answer.tool_calls else "stop",
            usage=answer.usage,
            ttft=answer.ttft,
            seconds=answer.seconds,
            endpoint=ENDPOINT,
        )


def _agent_name(recorded: RecordedConversation) -> str:
    return recorded.name if recorded.name == MAIN else recorded.name.rpartition("_")[0]


def _deltas(answer: RecordedAnswer) -> Iterator[Delta]:
    for piece in _cut(answer.reasoning):
        yield Delta(reasoning=piece)
    for piece in _cut(answer.text):
        yield Delta(text=piece)
    for index, call in enumerate(answer.tool_calls):
        function = call["function"]
        yield _call_delta(index, {"name": function["name"], "arguments": ""}, id=call["id"], type="function")
        for piece in _cut(function["arguments"]):
            yield _call_delta(index, {"arguments": piece})


def _call_delta(index: int, function: Json, **more: str) -> Delta:
    return Delta(tool_calls=({"index": index, **more, "function": function},))


def _cut(text: str) -> Iterator[str]:
    for begin in range(0, len(text), _PIECE_CHARS):
        yield text[begin : begin + _PIECE_CHARS]
