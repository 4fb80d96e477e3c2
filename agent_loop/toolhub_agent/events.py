"""Reports what an agent does while it runs: MiroFlow's stream of events, and callbacks for a live view."""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from toolhub_agent.types import Completion, Delta, Json, ToolCall, ToolOutcome

# --- MiroFlow's events ------------------------------------------------------------------------------------------------
# The events that MiroFlow's front ends read to follow a task, and the None that ends them.

logger = logging.getLogger(__name__)


class EventSink(Protocol):
    """Receives events: any object with `put`. If `put` returns an awaitable, it is awaited.

    An `asyncio.Queue` and a janus queue's async side qualify. So does a `queue.Queue`, but its `put` must not block:
    give it no maximum size.
    """

    def put(self, item: Any, /) -> Any: ...


class StreamEvents:
    """Sends events in order. sink: None sends nothing. After a sink failed, nothing more is sent; the task goes on."""

    def __init__(self, sink: EventSink | None = None) -> None:
        self._sink = sink

    async def start_of_workflow(self, text: str) -> str:
        """Returns the workflow's id. text: the task."""
        workflow = str(uuid.uuid4())
        await self._send("start_of_workflow", workflow_id=workflow, input=[{"role": "user", "content": text}])
        return workflow

    async def end_of_workflow(self, workflow: str) -> None:
        await self._send("end_of_workflow", workflow_id=workflow)

    async def start_of_agent(self, name: str, display_name: str | None = None) -> str:
        """Returns the agent's id."""
        agent = str(uuid.uuid4())
        await self._send("start_of_agent", agent_name=name, display_name=display_name, agent_id=agent)
        return agent

    async def end_of_agent(self, name: str, agent: str) -> None:
        await self._send("end_of_agent", agent_name=name, agent_id=agent)

    async def start_of_llm(self, name: str, display_name: str | None = None) -> None:
        await self._send("start_of_llm", agent_name=name, display_name=display_name)

    async def end_of_llm(self, name: str) -> None:
        await self._send("end_of_llm", agent_name=name)

    async def message(self, message: str, text: str) -> None:
        """Send a piece of a text. message: an id that all pieces of the text share."""
        await self._send("message", message_id=message, delta={"content": text})

    async def tool_call(self, tool: str, payload: Mapping[str, Any], *, call: str | None = None) -> str:
        """Returns the call's id. payload: the arguments; `tool_result` sends the second event."""
        call = call or str(uuid.uuid4())
        await self._send("tool_call", tool_call_id=call, tool_name=tool, tool_input=dict(payload))
        return call

    async def tool_result(self, tool: str, text: str, *, call: str) -> None:
        """call: the id of its `tool_call`. Not sent for calls that were rolled back."""
        await self.tool_call(tool, {"result": text}, call=call)

    async def show_text(self, text: str) -> None:
        await self.tool_call("show_text", {"text": text})

    async def show_error(self, error: str) -> None:
        """Send the event; it also ends the stream."""
        await self.tool_call("show_error", {"error": error})
        await self.end()

    async def end(self) -> None:
        """Send None. Nothing is sent after it."""
        await self._put(None)
        self._sink = None

    async def _send(self, event: str, **data: Any) -> None:
        await self._put({"event": event, "data": data})

    async def _put(self, item: Json | None) -> None:
        if self._sink is None:
            return
        try:
            waiting = self._sink.put(item)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception as exc:
            logger.warning("no more events are sent: the queue refused one: %r", exc)
            self._sink = None


# --- Callbacks --------------------------------------------------------------------------------------------------------
# Callbacks for MiroFlow's stream of events and for a live view.


class AgentCallbacks(Protocol):
    """A live view. Methods return at once and do not raise."""

    def wrote(self, agent: str, delta: Delta) -> None: ...

    def answered(self, agent: str, turn: int, completion: Completion | None, rolled_back: str | None) -> None: ...

    def calling(self, agent: str, call: ToolCall) -> None: ...

    def called(self, agent: str, outcome: ToolOutcome) -> None: ...


class NoCallbacks:
    """Callbacks that do nothing."""

    def wrote(self, agent: str, delta: Delta) -> None:
        pass

    def answered(self, agent: str, turn: int, completion: Completion | None, rolled_back: str | None) -> None:
        pass

    def calling(self, agent: str, call: ToolCall) -> None:
        pass

    def called(self, agent: str, outcome: ToolOutcome) -> None:
        pass


class AgentReporter:
    """Sends one agent's actions to the stream of events and to the callbacks."""

    def __init__(self, agent: str, events: StreamEvents, callbacks: AgentCallbacks) -> None:
        self.agent = agent
        self._events = events
        self._callbacks = callbacks

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Report a running agent, from its first turn to its report."""
        agent_id = await self._events.start_of_agent(self.agent)
        try:
            yield
        finally:
            await self._events.end_of_agent(self.agent, agent_id)

    @asynccontextmanager
    async def generating(self) -> AsyncIterator[Callable[[Delta], Awaitable[None]]]:
        """Report one answer. Call what is yielded with each of its pieces."""
        message = str(uuid.uuid4())

        async def seen(delta: Delta) -> None:
            self._callbacks.wrote(self.agent, delta)
            if delta.text:
                await self._events.message(message, delta.text)

        await self._events.start_of_llm(self.agent)
        try:
            yield seen
        finally:
            await self._events.end_of_llm(self.agent)

    async def call_started(self, call: ToolCall) -> str:
        """Report the start of a call; return the id of its event."""
        self._callbacks.calling(self.agent, call)
        return await self._events.tool_call(call.tool, call.arguments)

    async def call_finished(self, outcome: ToolOutcome, event: str) -> None:
        """Report a call's outcome. event: what `call_started` returned."""
        self._callbacks.called(self.agent, outcome)
        await self._events.tool_result(outcome.call.tool, outcome.text, call=event)

    async def answered(self, turn: int, completion: Completion | None, rolled_back: str | None) -> None:
        """Report the end of a turn, whatever its result."""
        self._callbacks.answered(self.agent, turn, completion, rolled_back)
        if completion is not None and rolled_back is None and completion.text:
            await self._events.show_text(completion.text)
