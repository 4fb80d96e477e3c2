"""The channel of every MCP server: handshake, calls, notifications.

The SDK's `ClientSession` does the handshake. Calls then go through its dispatcher's `send_raw_request`, so that unknown
fields survive and a sloppy answer raises no error. The dispatcher is our own `Peer` for child processes and builtin
servers, and the SDK's over HTTP. The end of its receive loop is the end of the connection: after EOF, after a crash of
the transport, and after our own closing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, cast

import anyio
import anyio.abc
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    DispatchContext,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
)
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
)
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    Implementation,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolhub.channel.base import ChannelClosed, ExitInfo, OpenFailed, ServerRefused
from toolhub.channel.jsonrpc.peer import UNSENT, RawNotified
from toolhub.config import ServerSpec
from toolhub.errors import ProtocolViolation
from toolhub.model import Json, LogFn, ProgressFn, ServerInfo
from toolhub.owned import unwrapped

CLIENT_INFO = Implementation(name="toolhub", version="0.1.0")
_MAX_PAGES = 1000
# How the SDK (2.3) begins the error that it makes of an answer over HTTP that it cannot read.
_UNREADABLE = "Failed to parse JSON response"

logger = logging.getLogger(__name__)


class Relay(Dispatcher[TransportContext], Protocol):
    """A dispatcher that tells when it has ended and hands out notifications unparsed."""

    ended: anyio.Event
    on_raw_notification: RawNotified | None


class RelayDispatcher(JSONRPCDispatcher[TransportContext]):
    """The SDK's dispatcher as a relay."""

    def __init__(self, *streams: Any) -> None:
        super().__init__(*streams)
        self.ended = anyio.Event()
        self.on_raw_notification: RawNotified | None = None

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        async def relay(
            context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> None:
            show = self.on_raw_notification
            if show is not None and (work := show(method, params)) is not None:
                await work()

        try:
            await super().run(on_request, relay, on_notify_intercept, task_status=task_status)
        finally:
            self.ended.set()


class McpChannel:
    """A conversation that has been set up. See `channel.base.Channel` for the contract."""

    def __init__(self, session: ClientSession, dispatcher: Relay, *, evidence: Callable[[], ExitInfo]):
        self.info = _server_info(session)
        self.pid: int | None = None
        self.on_tools_changed: Callable[[], None] | None = None
        self._session = session
        self._dispatcher = dispatcher
        self._evidence = evidence
        self._log_listeners: dict[int, LogFn] = {}
        self._next_listener = 0
        self._modern_meta = _modern_meta(self.info)
        dispatcher.on_raw_notification = self._notified

    async def list_tools(self) -> list[Json]:
        tools: list[Json] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self.request("tools/list", {"cursor": cursor} if cursor else None)
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise ProtocolViolation("tools/list answered without a list of tools", sent="maybe")
            tools += [tool for tool in listed if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
            cursor = page.get("nextCursor")
            if not cursor:
                return tools
        raise ProtocolViolation(f"tools/list has more than {_MAX_PAGES} pages; its cursor never ends", sent="maybe")

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        on_progress: ProgressFn | None = None,
        on_log: LogFn | None = None,
    ) -> Json:
        params = {"name": name, "arguments": arguments}
        if on_log is None:
            return await self.request("tools/call", params, on_progress=on_progress)
        key = self._next_listener = self._next_listener + 1
        self._log_listeners[key] = on_log
        try:
            return await self.request("tools/call", params, on_progress=on_progress)
        finally:
            del self._log_listeners[key]

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, on_progress: ProgressFn | None = None
    ) -> Json:
        if self._dispatcher.ended.is_set():
            raise ChannelClosed(sent="no")
        options: CallOptions = {}
        if on_progress is not None:
            options["on_progress"] = cast(ProgressFnT, on_progress)
        if self._modern_meta is not None:
            params, options = self._stamped(method, params, options)
        try:
            return await self._dispatcher.send_raw_request(method, params, options)
        except MCPError as exc:
            raise self._translated(exc) from exc
        except ValidationError as exc:
            raise ProtocolViolation(
                f"the answer to {method} is not valid JSON-RPC: {exc.error_count()} errors"
            ) from exc

    def _translated(self, exc: MCPError) -> Exception:
        if exc.code == CONNECTION_CLOSED:
            return ChannelClosed(exc.message, sent="no" if exc.error.data == UNSENT else "maybe")
        if exc.code == INVALID_REQUEST and "session" in exc.message.lower() and self.pid is None:
            # A restarted HTTP server does not know our session id. It refused the request, so it did not execute it.
            self._dispatcher.ended.set()
            return ChannelClosed(f"the server no longer knows this session ({exc.message})", sent="no")
        if exc.code == PARSE_ERROR and exc.message.startswith(_UNREADABLE):
            return ProtocolViolation("the server sent half an answer, or one that is no JSON-RPC", sent="maybe")
        return ServerRefused(exc.code, exc.message, exc.error.data)

    def _stamped(self, method: str, params: Mapping[str, Any] | None, options: CallOptions) -> tuple[Json, CallOptions]:
        """Add what revision 2026-07-28 requires with every request:

        fields in `_meta`, and a copy of them in headers.
        """
        stamped = dict(params or {})
        stamped["_meta"] = {**(stamped.get("_meta") or {}), **(self._modern_meta or {})}
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.info.protocol, MCP_METHOD_HEADER: method}
        if isinstance(name := stamped.get("name"), str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        options["headers"] = headers
        return stamped, options

    def _notified(self, method: str, params: Mapping[str, Any] | None) -> Callable[[], Awaitable[None]] | None:
        if method == "notifications/tools/list_changed" and self.on_tools_changed is not None:
            self.on_tools_changed()
        elif method == "notifications/message" and self._log_listeners:
            return partial(_tell, list(self._log_listeners.values()), params)
        return None

    async def wait_closed(self) -> None:
        await self._dispatcher.ended.wait()

    def exit_info(self) -> ExitInfo:
        return self._evidence()


async def _tell(listeners: list[LogFn], params: Mapping[str, Any] | None) -> None:
    for listener in listeners:
        try:
            await listener(dict(params or {}))
        except Exception:
            logger.exception("log listener raised")


def _server_info(session: ClientSession) -> ServerInfo:
    result = session.initialize_result or session.discover_result
    info = session.server_info
    capabilities = result.capabilities.model_dump(by_alias=True, exclude_none=True) if result else {}
    return ServerInfo(
        name=info.name if info else "",
        version=info.version if info else "",
        protocol=session.protocol_version or "",
        capabilities=capabilities,
        instructions=result.instructions if result else None,
    )


def _modern_meta(info: ServerInfo) -> Json | None:
    if info.protocol not in MODERN_PROTOCOL_VERSIONS:
        return None
    return {
        PROTOCOL_VERSION_META_KEY: info.protocol,
        CLIENT_INFO_META_KEY: CLIENT_INFO.model_dump(by_alias=True, mode="json", exclude_none=True),
        CLIENT_CAPABILITIES_META_KEY: {},
    }


async def _handshake(session: ClientSession, spec: ServerSpec) -> None:
    """Do the handshake. `auto` asks for the modern revision first; some servers crash on that."""
    try:
        with anyio.fail_after(spec.start_timeout_s):
            await _negotiate(session, spec)
    except TimeoutError:
        raise OpenFailed(
            f"it did not answer the handshake within {spec.start_timeout_s:g} s (start_timeout_s)"
        ) from None


async def _negotiate(session: ClientSession, spec: ServerSpec) -> None:
    if spec.protocol == "auto" and spec.transport != "sse":
        try:
            await session.discover()
            return
        except MCPError:
            pass
    await session.initialize()


@asynccontextmanager
async def conversation(
    spec: ServerSpec, dispatcher: Relay, evidence: Callable[[], ExitInfo]
) -> AsyncIterator[McpChannel]:
    """Set up a session over a dispatcher; leaving ends it, not the transport."""
    dispatcher.on_raw_notification = lambda method, params: None  # there are no listeners yet
    async with ClientSession(dispatcher=dispatcher, client_info=CLIENT_INFO) as session:
        await _handshake(session, spec)
        yield McpChannel(session, dispatcher, evidence=evidence)


def open_reason(exc: BaseException) -> str:
    """Say why a conversation could not be set up."""
    cause = unwrapped(exc)
    if isinstance(cause, OpenFailed):
        return str(cause)
    if isinstance(cause, MCPError) and cause.code == CONNECTION_CLOSED:
        return "it ended the connection during the handshake"
    if isinstance(cause, MCPError):
        return f"the handshake was refused: {cause.message} (code {cause.code})"
    if isinstance(cause, ValidationError):
        return f"the answer to the handshake is not valid MCP ({cause.error_count()} errors)"
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
