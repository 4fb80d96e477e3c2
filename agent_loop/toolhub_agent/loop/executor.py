"""Executing one call: a tool of a server, or another agent; whatever happens, it ends as an outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from toolhub_agent.model import ToolCall, ToolOutcome
from toolhub_agent.tool_calls.catalog import SUB_AGENT_PREFIX
from toolhub_agent.tools import ToolSource

RunSubAgent = Callable[[str, str], Awaitable[str]]
"""Takes the server's name (`agent-<name>`) and the subtask; gives back the report."""


class Executor:
    """Calls tools through a `ToolSource`. One per agent."""

    def __init__(self, tools: ToolSource, *, timeout: float, run_sub_agent: RunSubAgent | None = None) -> None:
        """timeout: seconds for one tool call. A sub-agent has as many turns as it has, but no time of its own."""
        self._tools = tools
        self._timeout = timeout
        self._run_sub_agent = run_sub_agent

    async def __call__(self, call: ToolCall) -> ToolOutcome:
        """Raises nothing but cancellation."""
        began = anyio.current_time()
        text, is_error = await self._answer(call)
        return ToolOutcome(call, text, is_error, seconds=anyio.current_time() - began)

    async def _answer(self, call: ToolCall) -> tuple[str, bool]:
        try:
            if self._run_sub_agent is not None and call.server.startswith(SUB_AGENT_PREFIX):
                return await self._run_sub_agent(call.server, str(call.arguments.get("subtask", ""))), False
            return await self._call_tool(call)
        except Exception as exc:  # a foreign ToolManager may raise anything; the model is told, the task goes on
            return str(exc) or repr(exc), True

    async def _call_tool(self, call: ToolCall) -> tuple[str, bool]:
        with anyio.move_on_after(self._timeout):
            answer = await self._tools.execute_tool_call(call.server, call.tool, call.arguments)
            if "error" in answer:
                return str(answer["error"]), True
            return str(answer.get("result", "")), False
        return f"no answer within {self._timeout:g} s; it may have been executed", True
