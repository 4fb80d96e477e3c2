"""The events by which MiroFlow's front ends follow a task, and the None that ends them."""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from toolhub_agent.model import Json

logger = logging.getLogger(__name__)


class EventSink(Protocol):
    """Where events go: any object with `put`. What it returns is awaited if it can be.

    So an `asyncio.Queue` fits, and a janus queue's async side, and a `queue.Queue` or a list's wrapper, whose `put`
    must not block: give it no size.
    """

    def put(self, item: Any, /) -> Any: ...


class StreamEvents:
    """Sends events in their order. sink: None sends nothing. A sink that fails is given up; the task goes on."""

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
        """A piece of a text. message: the id all pieces of it share."""
        await self._send("message", message_id=message, delta={"content": text})

    async def tool_call(self, tool: str, payload: Mapping[str, Any], *, call: str | None = None) -> str:
        """Returns the call's id. payload: the arguments; `tool_result` sends the second event."""
        call = call or str(uuid.uuid4())
        await self._send("tool_call", tool_call_id=call, tool_name=tool, tool_input=dict(payload))
        return call

    async def tool_call_delta(self, tool: str, payload: Mapping[str, Any], *, call: str | None = None) -> str:
        """The same, an argument at a time, for front ends that show them so."""
        call = call or str(uuid.uuid4())
        for name, value in payload.items():
            await self._send("tool_call", tool_call_id=call, tool_name=tool, delta_input={name: value})
        return call

    async def tool_result(self, tool: str, text: str, *, call: str) -> None:
        """call: the id of its `tool_call`. Not sent for calls that were taken back."""
        await self.tool_call(tool, {"result": text}, call=call)

    async def show_text(self, text: str) -> None:
        await self.tool_call("show_text", {"text": text})

    async def show_error(self, error: str) -> None:
        """Also ends the stream."""
        await self.tool_call("show_error", {"error": error})
        await self.end()

    async def end(self) -> None:
        """Send None; nothing is sent after it."""
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
            logger.warning("the stream of events ends here, its queue refused one: %r", exc)
            self._sink = None
