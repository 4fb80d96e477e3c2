"""The MCP gateway: the hub as one MCP server. Any MCP client sees the tools of all its servers.

`hub.tool_prefix` decides which tools are listed as `server__tool`. Calls may always use that form.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server
from mcp.server.connection import allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolhub.errors import ToolhubError
from toolhub.model import Json, LogFn, ProgressFn, Result, ToolInfo
from toolhub.sessions.session import ERROR_META
from toolhub.tool_names import SEPARATOR, Prefix, exposed_names, qualified
from toolhub.wire import error_to_wire

# A client that does not read its notifications must not delay those of the others.
_ANNOUNCE_S = 5.0
# At most this many notices of a call wait for a slow client. Further ones are dropped, which MCP allows.
_MOST_NOTICES = 4096

logger = logging.getLogger(__name__)
Context = ServerRequestContext[Any, Any]


class Tools(Protocol):
    """The part of a task that the gateway uses; a HubTask or a RemoteTask."""

    async def tools_by_server(self) -> Mapping[str, list[ToolInfo] | ToolhubError]: ...

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: ProgressFn | None = None,
        on_log: LogFn | None = None,
    ) -> Result: ...


class GatewayServer(Server[Any]):
    """The SDK's low-level server, announcing that its tool list can change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


class McpGateway:
    """Answers MCP's tool methods from a task. task_of: finds the task of a request. prefix: see `tool_names`."""

    def __init__(self, task_of: Callable[[Context], Awaitable[Tools]], *, version: str, prefix: Prefix) -> None:
        self._task_of = task_of
        self._prefix = prefix
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._names: weakref.WeakKeyDictionary[Tools, dict[str, ToolInfo]] = weakref.WeakKeyDictionary()
        self._bus = InMemorySubscriptionBus()
        self._subscriptions = ListenHandler(self._bus)
        self.server = GatewayServer(
            "toolhub",
            version=version,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._subscriptions,
        )
        self.server.middleware.append(self._relay)

    async def announce_change(self) -> None:
        """Tell every connected client to list the tools again."""
        self._names.clear()
        await self._bus.publish(ToolsListChanged())
        with anyio.move_on_after(_ANNOUNCE_S):
            async with anyio.create_task_group() as telling:
                for connection in list(self._connections):
                    telling.start_soon(connection.send_tool_list_changed)

    def end_streams(self) -> None:
        """End the subscriptions of modern clients, and notify them of it."""
        self._subscriptions.close()

    async def _relay(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer `tools/list`, and calls of the handshake era, with the server's own objects.

        The SDK would drop fields that its models do not know, and change the order of a schema's keys. A gateway must
        pass both on unchanged.
        """
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if ctx.method == "tools/list":
            envelope = await call_next(ctx) if is_modern else {}
            return {**cast(Json, envelope), "tools": await self._listing(ctx)}
        if not is_modern:
            params = ctx.params or {}
            if ctx.method == "tools/call" and isinstance(params.get("name"), str):
                return await self._result(ctx, params["name"], params.get("arguments"))
        return await call_next(ctx)

    async def _list_tools(self, context: Context, params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])  # what the era wants around the tools; see `_relay`

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult.model_validate(await self._result(context, params.name, params.arguments))

    async def _exposed(self, task: Tools) -> dict[str, ToolInfo]:
        """Return the tools by their listed names. Calls may use the qualified names too."""
        tools: list[ToolInfo] = []
        for server, found in (await task.tools_by_server()).items():
            if isinstance(found, ToolhubError):
                logger.warning("the tools of server %r are not listed: %s", server, found)
            else:
                tools += found
        listed = exposed_names(tools, prefix=self._prefix)
        if len(listed) < len(tools):
            shown = {id(tool) for tool in listed.values()}
            left_out = [f"{tool.server}/{tool.name}" for tool in tools if id(tool) not in shown]
            logger.warning(
                "several servers have tools of one name, and hub.tool_prefix is %r; not listed: %s",
                self._prefix,
                ", ".join(left_out),
            )
        self._names[task] = {qualified(tool): tool for tool in tools} | listed
        return listed

    async def _listing(self, context: Context) -> list[Json]:
        # The SDK makes a session object per request. Its connection lasts, so changes are announced on the connection.
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._connections.add(context.session._connection)
        exposed = await self._exposed(await self._task_of(context))
        return [{**tool.raw, "name": name} for name, tool in exposed.items()]

    async def _resolve(self, task: Tools, name: str) -> tuple[str, str] | None:
        """Return (server, tool) of a name. An unknown name makes it list the tools again."""
        if name not in self._names.get(task, {}):
            await self._exposed(task)
        tool = self._names.get(task, {}).get(name)
        if tool is not None:
            return tool.server, tool.name
        # A server whose tools could not be listed. Its own error says more than "unknown tool".
        server, separator, plain = name.partition(SEPARATOR)
        return (server, plain) if separator else None

    async def _result(self, context: Context, name: str, arguments: Any) -> Json:
        task = await self._task_of(context)
        resolved = await self._resolve(task, name)
        if resolved is None:
            return error_result(f"Unknown tool: {name}")
        notices = _Notices(context)
        async with anyio.create_task_group() as passing:
            passing.start_soon(notices.pass_on)
            try:
                raw = (await task.call(*resolved, arguments, on_progress=notices.progress, on_log=notices.log)).raw
            except ToolhubError as exc:
                raw = error_result(str(exc), error_to_wire(exc))
            finally:
                notices.end()
        refused = (raw.get("_meta") or {}).get(ERROR_META)
        if refused:
            raise MCPError(code=refused["code"], message=refused["message"], data=refused["data"])
        return raw


class _Notices:
    """Sends a call's progress and logs to the client, in order and before the result.

    A transport of the modern era takes one notice at a time, and drops those that are not sent before the result.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting, self._next = anyio.create_memory_object_stream[Callable[[], Awaitable[None]]](_MOST_NOTICES)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._put(functools.partial(self._context.session.report_progress, progress, total, message))

    async def log(self, params: Json) -> None:
        line = types.LoggingMessageNotificationParams.model_validate({"level": "info", "data": None, **params})
        if line.level not in allowed_log_levels(self._context.protocol_version, self._context.meta):
            return  # modern clients request logs with each call; without that request they must get none
        notice = types.LoggingMessageNotification(params=line)
        self._put(functools.partial(self._context.session.send_notification, notice, self._context.request_id))

    def _put(self, notice: Callable[[], Awaitable[None]]) -> None:
        try:
            self._waiting.send_nowait(notice)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            logger.debug("a notice was dropped: the client reads too slowly, or has the result already")

    async def pass_on(self) -> None:
        """Send notices until `end()` was called and none waits."""
        with self._next:
            async for notice in self._next:
                await notice()

    def end(self) -> None:
        self._waiting.close()


def error_result(text: str, details: Json | None = None) -> Json:
    """Return a failure as a tool result, which the model reads."""
    result: Json = {"content": [{"type": "text", "text": text}], "isError": True}
    if details:
        result["_meta"] = {"toolhub/error": details}
    return result
