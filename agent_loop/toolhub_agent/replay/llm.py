"""A recorded model in the place of the loop's client of model servers.

It gives the answer that stood at the same place of the recorded conversation: the one after as many answers as the
prompt has. So a turn that the loop takes back, because a tool behaves in another way today, does not shift the rest.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from toolhub_agent.errors import LlmRefused
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.replay.trajectory import Answer, Recorded, Trajectory, text_of
from toolhub_agent.tasklog import MAIN
from toolhub_agent.types import Completion, Delta, Json

ENDPOINT = "recording"
# About two tokens; a call is seen to start while the rest is still coming.
_PIECE_CHARS = 8
# How the loop names the conversation of a sub-agent, behind the name of the main agent's.
_SUB_AGENT = re.compile(r"-(agent-.+)_(\d+)-[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True)
class Pace:
    """Recorded times are kept up to these, in seconds: nobody wants to sit through a model's minutes again."""

    longest_ttft: float = 0.5
    longest_writing: float = 3.0


class ReplayLlm:
    """What a `Conversation` uses of `LlmClient`. ended: what was asked for and had not been recorded."""

    known_model: str | None = None

    def __init__(self, trajectory: Trajectory, pace: Pace | None = None) -> None:
        self.ended: list[str] = []
        self._trajectory = trajectory
        self._pace = pace or Pace()
        self._playing: dict[str, Recorded] = {}
        self._left = list(trajectory.conversations)

    def __repr__(self) -> str:
        return f"<ReplayLlm {self._trajectory.task_id}, {len(self._left)} conversations not begun>"

    @asynccontextmanager
    async def stream(self, request: LlmRequest) -> AsyncIterator[RecordedStream]:
        """The recorded answer, piece by piece. Raises LlmRefused where the recording has none."""
        yield RecordedStream(self._answer(request), self._pace)

    def endpoint_of(self, session: str) -> str:
        return ENDPOINT

    def forget(self, session: str) -> None:
        self._playing.pop(session, None)

    def _answer(self, request: LlmRequest) -> Answer:
        place: int = sum(message["role"] == "assistant" for message in request.messages)
        recorded = self._playing.get(request.session) or self._begin(request)
        if recorded is None or place >= len(recorded.answers):
            raise self._end(request, place)
        return recorded.answers[place]

    def _begin(self, request: LlmRequest) -> Recorded | None:
        """Sub-agents of one name are told apart by what they were asked: they may start in another order today."""
        found = _SUB_AGENT.search(request.session)
        agent = found.group(1) if found else MAIN
        left = [one for one in self._left if _agent_of(one) == agent]
        opening = next((text_of(message) for message in request.messages if message["role"] == "user"), "")
        same = [one for one in left if one.opening == opening]
        # An interrupted one has a complete one of the same task after it.
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
    """One answer again, no slower than the pace allows. Iterate over it once; then there is a `completion`."""

    def __init__(self, answer: Answer, pace: Pace) -> None:
        pieces = list(_pieces(answer))
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
        """With the figures of the recording."""
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


def _agent_of(recorded: Recorded) -> str:
    return recorded.name if recorded.name == MAIN else recorded.name.rpartition("_")[0]


def _pieces(answer: Answer) -> Iterator[Delta]:
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
