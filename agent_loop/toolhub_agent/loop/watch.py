"""Being told what an agent does while it does it: for MiroFlow's stream of events, and for a live view."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from toolhub_agent.model import Completion, Delta, ToolCall, ToolOutcome
from toolhub_agent.tasklog import StreamEvents


class Viewer(Protocol):
    """A live view. Methods return at once and do not raise."""

    def wrote(self, agent: str, delta: Delta) -> None: ...

    def answered(self, agent: str, turn: int, completion: Completion | None, taken_back: str | None) -> None: ...

    def calling(self, agent: str, call: ToolCall) -> None: ...

    def called(self, agent: str, outcome: ToolOutcome) -> None: ...


class NoViewer:
    """Nobody looks."""

    def wrote(self, agent: str, delta: Delta) -> None:
        pass

    def answered(self, agent: str, turn: int, completion: Completion | None, taken_back: str | None) -> None:
        pass

    def calling(self, agent: str, call: ToolCall) -> None:
        pass

    def called(self, agent: str, outcome: ToolOutcome) -> None:
        pass


class LoopWatch:
    """One agent's doings, told to the stream of events and to a viewer."""

    def __init__(self, agent: str, events: StreamEvents, viewer: Viewer) -> None:
        self.agent = agent
        self._events = events
        self._viewer = viewer

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The agent at work, from its first turn to its report."""
        agent_id = await self._events.start_of_agent(self.agent)
        try:
            yield
        finally:
            await self._events.end_of_agent(self.agent, agent_id)

    @asynccontextmanager
    async def generating(self) -> AsyncIterator[Callable[[Delta], Awaitable[None]]]:
        """One answer; call what is yielded with each of its pieces."""
        message = str(uuid.uuid4())

        async def seen(delta: Delta) -> None:
            self._viewer.wrote(self.agent, delta)
            if delta.text:
                await self._events.message(message, delta.text)

        await self._events.start_of_llm(self.agent)
        try:
            yield seen
        finally:
            await self._events.end_of_llm(self.agent)

    @asynccontextmanager
    async def calling(self, call: ToolCall) -> AsyncIterator[Callable[[ToolOutcome], None]]:
        """One call; call what is yielded with its outcome. A call that is cancelled has no second event."""
        outcomes: list[ToolOutcome] = []
        self._viewer.calling(self.agent, call)
        event = await self._events.tool_call(call.tool, call.arguments)
        yield outcomes.append
        for outcome in outcomes:
            self._viewer.called(self.agent, outcome)
            await self._events.tool_result(call.tool, outcome.text, call=event)

    async def answered(self, turn: int, completion: Completion | None, taken_back: str | None) -> None:
        """A turn has ended, one way or the other."""
        self._viewer.answered(self.agent, turn, completion, taken_back)
        if completion is not None and taken_back is None and completion.text:
            await self._events.show_text(completion.text)
