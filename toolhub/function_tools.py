"""A task's tools as functions of a model: in OpenAI's schema, with the dispatch of its tool calls, or for LangChain.

Both name the tools by one rule (`tool_names`). What a tool or its server has to say against a call is an answer for the
model. Only what makes every further call useless is raised: a task or a hub that is gone, a refused token.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import anyio

from toolhub.errors import CallError, ConfigError, ToolhubError, ToolNotFound
from toolhub.model import Json, Result, ToolInfo
from toolhub.tool_names import Prefix, function_names


class TaskOfTools(Protocol):
    """What is used of a task, embedded or remote."""

    @property
    def servers(self) -> tuple[str, ...]: ...

    async def tools(self, server: str) -> list[ToolInfo]: ...

    async def tools_by_server(self) -> Mapping[str, list[ToolInfo] | ToolhubError]: ...

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> Result: ...


async def named_tools(task: TaskOfTools, servers: Collection[str] | None, prefix: Prefix) -> dict[str, ToolInfo]:
    """Return the tools by function name, in the config's order. servers: only these.

    Raises the error of a server whose tools cannot be listed, ToolNotFound for an unknown server, ConfigError for two
    tools of one name.
    """
    tools: list[ToolInfo] = []
    for listed in await _listed(task, servers):
        if isinstance(listed, ToolhubError):
            raise listed
        tools += listed
    names = function_names(tools, prefix=prefix)
    if len(names) < len(tools):
        raise ConfigError(_doubled(tools, names, prefix))
    return names


async def _listed(task: TaskOfTools, servers: Collection[str] | None) -> Collection[list[ToolInfo] | ToolhubError]:
    """Return each server's tools or its error, in the config's order. Only the servers asked for are started."""
    if servers is None:
        return (await task.tools_by_server()).values()
    chosen = [server for server in task.servers if server in servers]
    chosen += [server for server in servers if server not in chosen]  # the task says what is wrong with these
    found: dict[str, list[ToolInfo] | ToolhubError] = dict.fromkeys(chosen, [])

    async def ask(server: str) -> None:
        try:
            found[server] = await task.tools(server)
        except ToolhubError as exc:
            found[server] = exc

    async with anyio.create_task_group() as asking:
        for server in chosen:
            asking.start_soon(ask, server)
    return found.values()


def _doubled(tools: list[ToolInfo], names: Mapping[str, ToolInfo], prefix: Prefix) -> str:
    used = {id(tool) for tool in names.values()}
    one = next(tool for tool in tools if id(tool) not in used)
    return (
        f"tool {one.name!r} of server {one.server!r} has the same name as a tool of another server with "
        f"prefix={prefix!r}; use prefix='always', rename a server, or choose the servers with servers=[...]"
    )


class OpenAITools:
    """The tools of a task for OpenAI's chat completions API. Made by `task.to_openai()`."""

    def __init__(self, task: TaskOfTools, tools: Mapping[str, ToolInfo]) -> None:
        self._task = task
        self._tools = tools
        self.definitions: list[Json] = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": tool.description or "",
                    "parameters": _parameters(tool),
                },
            }
            for name, tool in tools.items()
        ]
        """The `tools` of a request."""

    def __repr__(self) -> str:
        return f"<OpenAITools {list(self._tools)}>"

    async def call(self, tool_calls: Iterable[Any] | None) -> list[Json]:
        """Make the tool calls of one message; return the messages that answer them, in the order of the calls.

        tool_calls: `message.tool_calls`, as objects of the SDK or as dicts. Calls to different servers run side by
        side. Calls to one server run one after the other, unless all of them only read. Raises HubClosed, TaskClosed,
        Unauthorized.
        """
        calls = [call if isinstance(call, Mapping) else call.model_dump() for call in tool_calls or ()]
        answers: list[str] = [""] * len(calls)
        failures: list[ToolhubError] = []

        async def run(numbers: list[int]) -> None:
            for number in numbers:
                try:
                    answers[number] = await self._answer(calls[number])
                except ToolhubError as exc:  # kept out of the task group, which would wrap it
                    failures.append(exc)

        async with anyio.create_task_group() as running:
            for numbers in self._in_order(calls):
                running.start_soon(run, numbers)
        if failures:
            raise failures[0]
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": answer}
            for call, answer in zip(calls, answers, strict=True)
        ]

    def _in_order(self, calls: list[Mapping[str, Any]]) -> list[list[int]]:
        """Return the numbers of the calls, those in one list that must run one after the other."""
        by_server: dict[str, list[int]] = {}
        for number, call in enumerate(calls):
            tool = self._tools.get(_function_of(call)["name"])
            by_server.setdefault(tool.server if tool else "", []).append(number)
        groups = []
        for numbers in by_server.values():
            tools = [self._tools.get(_function_of(calls[number])["name"]) for number in numbers]
            only_read = all(tool is None or tool.is_read_only for tool in tools)
            groups += [[number] for number in numbers] if only_read else [numbers]
        return groups

    async def _answer(self, call: Mapping[str, Any]) -> str:
        function = _function_of(call)
        name: str = function["name"]
        tool = self._tools.get(name)
        if tool is None:
            # A model may leave the server's name out. Names of one server are similar, so only the nearest is named.
            plain = [known for known, tool in self._tools.items() if tool.name == name]
            near = plain or difflib.get_close_matches(name, self._tools, n=1)
            return str(ToolNotFound(f"there is no tool {name!r}", near=near))
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except ValueError as exc:
            return f"the arguments of {name} are not valid JSON ({exc}); nothing was called; send the call again"
        if not isinstance(arguments, dict):
            return f"the arguments of {name} must be a JSON object; nothing was called; send the call again"
        try:
            return _text_of(await self._task.call(tool.server, tool.name, arguments))
        except (CallError, ToolNotFound) as exc:
            return str(exc)


def _function_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function of a tool call; a call of another kind names none."""
    function = call.get("function")
    return function if isinstance(function, Mapping) else {"name": str(call.get("type"))}


def langchain_tools(task: TaskOfTools, tools: Mapping[str, ToolInfo]) -> list[Any]:
    """Return LangChain's `StructuredTool`s. Their artifact is the result as it stood on the wire.

    Raises ToolhubError if `langchain-core` is not installed.
    """
    try:
        langchain = importlib.import_module("langchain_core.tools")
    except ImportError as exc:
        raise ToolhubError(
            f"as_langchain() needs langchain-core, which LangChain and LangGraph bring ({exc}); install it with: "
            "pip install langchain-core"
        ) from exc

    def structured(name: str, tool: ToolInfo) -> Any:
        async def call(**arguments: Any) -> tuple[str, Json]:
            try:
                result = await task.call(tool.server, tool.name, arguments)
            except (CallError, ToolNotFound) as exc:
                raise langchain.ToolException(str(exc)) from exc
            if result.is_error:
                raise langchain.ToolException(_text_of(result))
            return _text_of(result), result.raw

        return langchain.StructuredTool(
            name=name,
            description=tool.description or "",
            args_schema=_parameters(tool),
            coroutine=call,
            response_format="content_and_artifact",
            handle_tool_error=True,  # a ToolException becomes a message that the model reads
        )

    return [structured(name, tool) for name, tool in tools.items()]


def _parameters(tool: ToolInfo) -> Json:
    """The tool's schema. Model APIs refuse an object without `properties`."""
    return {"type": "object", "properties": {}} | tool.input_schema


def _text_of(result: Result) -> str:
    """What a model reads of a result: its text, and a note for each block that is not text."""
    parts = [_text_of_block(block) for block in result.content]
    if not parts and result.structured is not None:
        return json.dumps(result.structured, ensure_ascii=False)
    return "\n".join(parts)


def _text_of_block(block: Json) -> str:
    if isinstance(block.get("text"), str):
        return str(block["text"])
    resource = block.get("resource")
    if isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    kind = block.get("mimeType") or (resource.get("mimeType") if isinstance(resource, Mapping) else None)
    where = block.get("uri") or (resource.get("uri") if isinstance(resource, Mapping) else None)
    return f"[{' '.join(str(part) for part in (block.get('type'), kind, where) if part)}: not shown as text]"
