"""The sources of the agent's tools, and how one call is executed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import anyio

from toolhub.errors import ToolhubError, ToolNotFound
from toolhub.miroflow import failure_of, normalised
from toolhub.model import Result, ToolInfo
from toolhub_agent.errors import ToolFailed
from toolhub_agent.tool_calls import Prefetch
from toolhub_agent.tool_calls.catalog import SUB_AGENT_PREFIX
from toolhub_agent.types import Json, ToolCall


class ToolSource(Protocol):
    """MiroFlow's `ToolManagerProtocol`; `toolhub.miroflow.ToolManager` is one."""

    async def get_all_tool_definitions(self) -> list[Json]:
        """``[{"name": server, "tools": [{"name", "description", "schema", "annotations"?} or {"error"}]}]``"""

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        """``{"server_name", "tool_name", "result" or "error"}``. Raises nothing except cancellation."""


class HubTask(Protocol):
    """The part of `toolhub.HubTask` that is used here; the tasks of `toolhub.connect(...)` have it too."""

    id: str

    async def tools_by_server(self) -> Mapping[str, list[ToolInfo] | ToolhubError]: ...

    async def call(
        self, server: str, tool: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result: ...

    async def prefetch(self, server: str, tool: str, arguments: Mapping[str, Any]) -> None: ...


class HubTools:
    """A hub's task as a `ToolSource`.

    async with Hub(config) as hub, hub.task("t1") as task:
        tools = HubTools(task)
        answer = await tools.execute_tool_call("clock", "get_current_time", {"timezone": "UTC"})
    """

    def __init__(self, task: HubTask, *, timeout: float | None = None) -> None:
        """timeout: seconds per call; None: the hub's config decides."""
        self._task = task
        self._timeout = timeout

    async def get_all_tool_definitions(self) -> list[Json]:
        found = await self._task.tools_by_server()
        return [{"name": server, "tools": _definitions(tools)} for server, tools in found.items()]

    async def prefetch(self, server_name: str, tool_name: str, arguments: Json) -> None:
        """Announce a call that the model is still writing. arguments: those that are complete."""
        await self._task.prefetch(server_name, tool_name, arguments)

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        answer: Json = {"server_name": server_name, "tool_name": tool_name}
        try:
            result = await self._task.call(server_name, tool_name, arguments, timeout=self._timeout)
        except ToolNotFound:
            return answer | {"result": f"Unknown tool: {tool_name}"}
        except ToolhubError as exc:
            return answer | {"error": failure_of(exc).text}
        text = _result_text(result)
        return answer | {"result": normalised(tool_name, text) if result.is_error else text}


def _definitions(tools: list[ToolInfo] | ToolhubError) -> list[Json]:
    if isinstance(tools, ToolhubError):
        return [{"error": f"Unable to fetch tools: {tools}"}]
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "schema": tool.input_schema,
            "annotations": tool.annotations,
            **({"prefetch": list(tool.prefetch)} if tool.prefetch else {}),
        }
        for tool in tools
    ]


def _result_text(result: Result) -> str:
    """All text blocks. Of another block its kind, so that the model knows about it."""
    return "\n".join(
        block["text"] if isinstance(block.get("text"), str) else f"[{block.get('type', 'unknown')} block]"
        for block in result.content
    )


RunSubAgent = Callable[[str, str], Awaitable[str]]
"""Called with the server's name (`agent-<name>`) and the subtask; returns the report."""


class ToolExecutor:
    """Runs calls: tools through a `ToolSource`, sub-agents through `run_sub_agent`. It is a dispatcher's `execute`."""

    def __init__(self, tools: ToolSource, *, timeout: float, run_sub_agent: RunSubAgent | None = None) -> None:
        """timeout: seconds for one tool call. Turns limit sub-agents, and a hub's task has its own timeout."""
        self._tools = tools
        self._timeout = None if isinstance(tools, HubTools) else timeout
        self._run_sub_agent = run_sub_agent

    @property
    def prefetch(self) -> Prefetch | None:
        """Announces a call that is being written; None if the tools cannot use that."""
        return self._tools.prefetch if isinstance(self._tools, HubTools) else None

    async def __call__(self, call: ToolCall) -> str:
        """Return the text of the result. Raises ToolFailed, or what the `ToolSource` raises."""
        if self._run_sub_agent is not None and call.server.startswith(SUB_AGENT_PREFIX):
            return await self._run_sub_agent(call.server, str(call.arguments.get("subtask", "")))
        with anyio.move_on_after(self._timeout):
            answer = await self._tools.execute_tool_call(call.server, call.tool, call.arguments)
            if "error" in answer:
                raise ToolFailed(str(answer["error"]))
            return str(answer.get("result", ""))
        raise ToolFailed(f"no answer within {self._timeout:g} s; the call may have been executed")
