"""What the servers are made of: their tools, and the resources that they share.

The description of a tool is made of a function's signature and docstring, by way of a pydantic model. That takes some
milliseconds and kilobytes. It is the same for each task, so it is made once in a process and kept by the function's
code, which all methods of a class and all closures of one `def` have in common.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, ToolAnnotations
from pydantic.json_schema import SkipJsonSchema

from toolhub.errors import ToolhubError
from toolhub.extensions import BuiltinContext
from toolhub.model import PREFETCH_META
from toolhub.shared_resources import SharedResources, open_shared_resources
from toolhub_servers.serving.overload import reporting_overload

# Parameters that may be null although the schema shows only the type.
MaybeText = str | SkipJsonSchema[None]
MaybeNumber = int | SkipJsonSchema[None]
MaybeFlag = bool | SkipJsonSchema[None]

_READS_WEB = ToolAnnotations(read_only_hint=True, open_world_hint=True)
_DESCRIBED: dict[Hashable, Tool] = {}


class ServerContext:
    """The owner of a server, and the resources that it uses while it runs: the hub's, or its own when it runs alone.

    Give `lifespan` to the MCPServer.
    """

    def __init__(self, context: BuiltinContext | None) -> None:
        self.owner = context.owner if context is not None else "server"
        """The task's id, "hub" for a server that all tasks share, "server" for one that runs alone."""
        self._lent = context.resources if context is not None else None
        self._resources = self._lent

    @property
    def resources(self) -> SharedResources:
        if self._resources is None:
            raise RuntimeError("the server is not running")
        return self._resources

    @asynccontextmanager
    async def lifespan(self, _server: Any) -> AsyncIterator[None]:
        """Open resources for this server alone while it runs, unless it has the hub's."""
        if self._lent is not None:
            yield
            return
        async with open_shared_resources() as resources:
            self._resources = resources
            try:
                yield
            finally:
                self._resources = None


def make_tool(
    function: Callable[..., Awaitable[Any]],
    *,
    annotations: ToolAnnotations | None = None,
    is_titled: bool = True,
    is_structured: bool = False,
    needed: tuple[str, ...] = (),
) -> Tool:
    """Return the tool that calls `function`. Its signature must be the same each time that its `def` is executed.

    is_titled: the schema has a title for the arguments as a whole, as with the SDK and unlike standalone fastmcp.
    is_structured: results have a schema too. needed: parameters that the schema marks as required although the function
    has a default for them.
    """
    code = cast(FunctionType, inspect.unwrap(function)).__code__  # a method has that of its function
    key = (code, is_titled, is_structured, needed)
    if key not in _DESCRIBED:
        _DESCRIBED[key] = _describe(function, is_titled=is_titled, is_structured=is_structured, needed=needed)
    return _DESCRIBED[key].model_copy(update={"fn": function, "annotations": annotations})


def read_only_tool(function: Callable[..., Awaitable[str]], *, is_titled: bool) -> Tool:
    """A tool that changes nothing and uses services outside, whose overload it reports; see `make_tool`."""
    return make_tool(reporting_overload(function), annotations=_READS_WEB, is_titled=is_titled)


@dataclass(frozen=True)
class Prefetch:
    """What a tool can do before its call is complete.

    argument: the one that it needs. begin: is given its value. unless: with one of these arguments nothing is done.
    """

    argument: str
    begin: Callable[[str], Awaitable[None]]
    unless: frozenset[str] = frozenset()


def make_server(
    name: str, tools: Sequence[Tool], prefetches: Mapping[str, Prefetch] | None = None, **options: Any
) -> MCPServer:
    """Return a server with these tools. Their schemas reach the client unchanged.

    prefetches: by tool. options: of MCPServer.
    """
    marks = {tool: {PREFETCH_META: [prefetch.argument]} for tool, prefetch in (prefetches or {}).items()}
    marked = [tool.model_copy(update={"meta": marks[tool.name]}) if tool.name in marks else tool for tool in tools]
    middleware = [_in_order(tools), _prefetching(prefetches or {})]
    return MCPServer(name, tools=marked, middleware=middleware, log_level="WARNING", **options)


def _prefetching(prefetches: Mapping[str, Prefetch]) -> ServerMiddleware[Any]:
    """Answer calls with the mark of a prefetch. They never reach a tool."""

    async def prefetching(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        params = ctx.params or {}
        if ctx.method != "tools/call" or not (params.get("_meta") or {}).get(PREFETCH_META):
            return await call_next(ctx)
        prefetch = prefetches.get(str(params.get("name")))
        arguments = params.get("arguments") or {}
        value = arguments.get(prefetch.argument) if prefetch and not prefetch.unless & arguments.keys() else None
        if prefetch is not None and isinstance(value, str):
            try:
                await prefetch.begin(value)
            except ToolhubError:
                pass  # the call itself will say what is wrong
        return CallToolResult(content=[])

    return prefetching


def _in_order(tools: Sequence[Tool]) -> ServerMiddleware[Any]:
    """Restore the order of a schema's keys, which the SDK changes: prompts are made of schemas that models know."""
    published = {tool.name: tool.parameters for tool in tools}

    async def in_order(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method != "tools/list" or not isinstance(result, dict):
            return result
        return {**result, "tools": [_ordered(tool, published[tool["name"]]) for tool in result["tools"]]}

    return in_order


def _ordered(tool: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool["inputSchema"]
    return {**tool, "inputSchema": {key: schema[key] for key in like if key in schema}}


def _describe(
    function: Callable[..., Awaitable[Any]], *, is_titled: bool, is_structured: bool, needed: tuple[str, ...]
) -> Tool:
    tool = Tool.from_function(
        function, description=inspect.getdoc(function), structured_output=None if is_structured else False
    )
    if not is_titled:
        del tool.parameters["title"]
    for name in needed:
        del tool.parameters["properties"][name]["default"]
        tool.parameters["required"].append(name)
    del tool.fn  # it would keep the first task's server alive for ever
    return tool
