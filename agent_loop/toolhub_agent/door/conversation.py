"""One conversation that passes through the door, and what the hints are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from toolhub_agent.door.calls import Wanted, wanted_in
from toolhub_agent.door.chain import Chain
from toolhub_agent.door.copy import Answer
from toolhub_agent.door.form import Form, Traces, traces_of
from toolhub_agent.kv_hints.signals import (
    AboutToResume,
    HintSink,
    HistoryRewritten,
    Prompt,
    Resumed,
    SessionFinal,
    ToolResultReady,
    ToolWaitStarted,
    TurnFinished,
)
from toolhub_agent.model import Json, Message

Tool = tuple[str, str]


@dataclass(eq=False)
class Conversation:
    """name: of the session in signals. affinity: what decides its endpoint. headers: of its requests.

    chain: of the latest request. task_id: the hub's task whose calls are this conversation's; None while unknown.
    """

    name: str
    affinity: str
    sink: HintSink
    headers: Mapping[str, str] = field(default_factory=dict)
    task_id: str | None = None
    form: Form = Form()
    chain: Chain | None = None
    token: str | None = None
    """A router's, to be sent back with the next request."""
    turns: int = 0
    is_asking: bool = False
    used_at: float = field(default_factory=anyio.current_time)
    wanted: tuple[Wanted, ...] = ()
    """The calls that the latest answer asks for."""
    running: list[Tool] = field(default_factory=list)
    _traces: Traces | None = None
    _began: int = 0
    _ended: int = 0
    _is_told: bool = False
    """The hints know the prompt that the next turn will have."""
    _is_resuming: bool = False

    def __repr__(self) -> str:
        state = "asking" if self.is_asking else f"{len(self.running)} calls running"
        return f"<Conversation {self.name}: {self.turns} turns, {state}, task {self.task_id}>"

    @property
    def is_in_use(self) -> bool:
        return self.is_asking or bool(self.running)

    @property
    def wants_more(self) -> bool:
        """Whether calls that the latest answer asks for have not begun yet."""
        return self._began < len(self.wanted)

    def answered(self, message: Message) -> bool:
        """Is this message the latest answer?"""
        return self._traces is not None and self._traces.is_of(message)

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, chain: Chain, messages: list[Message]) -> None:
        """The next request has come: whatever runs for this conversation must get out of its way."""
        before, self.chain = self.chain, chain
        self.is_asking, self.used_at = True, anyio.current_time()
        if before is not None:
            self._compare(before, chain, messages)
        self.sink.signal(AboutToResume(self.name))
        self._end_wait()

    def _compare(self, before: Chain, chain: Chain, messages: list[Message]) -> None:
        kept = before.common(chain)
        if kept < len(before):
            self.sink.signal(HistoryRewritten(self.name, kept))
        elif self._traces is not None and len(messages) > kept and messages[kept].get("role") == "assistant":
            self.form = self._traces.learn(messages[kept], self.form)

    def _end_wait(self) -> None:
        self.wanted, self._traces = (), None
        self.running.clear()
        self._began = self._ended = 0
        self._is_told = False

    def leave(self) -> None:
        """The request has come to nothing, or its answer is no turn."""
        self.is_asking, self.used_at = False, anyio.current_time()

    def finish(self, answer: Answer, messages: list[Message], body: Json, endpoint: str, *, is_turn: bool) -> None:
        """The answer is complete. body: the fields that shape prompts. is_turn: it will stand in history as it is."""
        self.leave()
        self.turns += 1
        if self._is_resuming:
            self.sink.signal(Resumed(self.name, answer.usage, answer.ttft))
        self._is_resuming = False
        if not is_turn:
            return
        self._traces = traces_of(answer.text, answer.reasoning, answer.calls)
        self.wanted = wanted_in(answer.text, answer.calls)
        if self.wanted or self.task_id is not None:
            prompt = (*messages, self.form.message(answer.text, answer.reasoning, answer.calls))
            self.sink.signal(TurnFinished(self.name, Prompt(prompt, body, endpoint), answer.usage, answer.ttft))
            self._is_told = True
            if self.running:  # begun while the answer was still coming
                self._tell_wait()

    # --- the hub's calls ---------------------------------------------------------------------------------------------

    def call_began(self, tool: Tool) -> None:
        self.running.append(tool)
        self._began += 1
        if self._is_told:
            self._tell_wait()

    def call_ended(self, tool: Tool, seconds: float) -> None:
        """What does not belong to this turn any more says nothing about its wait."""
        if tool not in self.running:
            return
        self.running.remove(tool)
        self._ended += 1
        if self._is_told:
            left = max(len(self.running), len(self.wanted) - self._ended)
            self.sink.signal(ToolResultReady(self.name, *tool, seconds, left))

    def _tell_wait(self) -> None:
        """All that runs, and what the turn asks for and has not begun: agents run calls one by one, too."""
        missing = max(0, len(self.wanted) - self._began)
        later = tuple((each.server, each.name) for each in self.wanted[len(self.wanted) - missing :])
        self.sink.signal(ToolWaitStarted(self.name, (*self.running, *later)))
        self._is_resuming = True

    def close(self) -> None:
        """No request follows."""
        self._end_wait()
        self.sink.signal(SessionFinal(self.name))
