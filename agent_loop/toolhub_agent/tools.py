"""Where the loop's tools come from: anything with MiroFlow's two methods, and a hub's task made to look like that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from toolhub.errors import ToolhubError, ToolNotFound
from toolhub.miroflow import failure_of, normalised
from toolhub.model import Result, ToolInfo
from toolhub_agent.model import Json


class ToolSource(Protocol):
    """MiroFlow's `ToolManagerProtocol`; `toolhub.miroflow.ToolManager` is one."""

    async def get_all_tool_definitions(self) -> list[Json]:
        """``[{"name": server, "tools": [{"name", "description", "schema", "annotations"?} or {"error"}]}]``"""

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        """``{"server_name", "tool_name", "result" or "error"}``; only cancellation is raised."""


class HubTask(Protocol):
    """What is used of `toolhub.HubTask`, and of the task that `toolhub.connect(...)` opens."""

    id: str

    async def tools_by_server(self) -> Mapping[str, list[ToolInfo] | ToolhubError]: ...

    async def call(
        self, server: str, tool: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result: ...


class HubTools:
    """A hub's task as a `ToolSource`."""

    def __init__(self, task: HubTask, *, timeout: float | None = None) -> None:
        """timeout: seconds per call; None: what the hub's config says."""
        self._task = task
        self._timeout = timeout

    async def get_all_tool_definitions(self) -> list[Json]:
        found = await self._task.tools_by_server()
        return [{"name": server, "tools": _definitions(tools)} for server, tools in found.items()]

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        answer: Json = {"server_name": server_name, "tool_name": tool_name}
        try:
            result = await self._task.call(server_name, tool_name, arguments, timeout=self._timeout)
        except ToolNotFound:
            return answer | {"result": f"Unknown tool: {tool_name}"}
        except ToolhubError as exc:
            return answer | {"error": failure_of(exc).text}
        text = _text_of(result)
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
        }
        for tool in tools
    ]


def _text_of(result: Result) -> str:
    """Every text block; of other blocks their kind, so that the model knows that something is there."""
    return "\n".join(
        block["text"] if isinstance(block.get("text"), str) else f"[{block.get('type', 'unknown')} block]"
        for block in result.content
    )
