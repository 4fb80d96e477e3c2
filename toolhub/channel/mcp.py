"""The channel of every MCP server: handshake, calls, notifications.

Messages pass as plain objects, so that unknown fields survive and a sloppy answer raises no error. What carries them is
a `Peer`, over pipes, over HTTP, or inside this process. The end of its receive loop is the end of the connection: after
EOF, after a crash of the transport, and after our own closing.

The requests of MCP clients are relayed: they keep everything but their id and their progress token, which are unique
per connection. What the server says while it answers one goes to that request's client.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import anyio
import anyio.abc
from mcp import MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    DispatchContext,
    ProgressFnT,
)
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
)

from toolhub import __version__
from toolhub.channel import bridge
from toolhub.channel.base import ChannelClosed, EraRefused, ExitInfo, OpenFailed, Refused
from toolhub.channel.jsonrpc.peer import LocalError, Peer
from toolhub.channel.pages import all_pages
from toolhub.config import ServerSpec
from toolhub.errors import ProtocolViolation
from toolhub.model import (
    OWN_PROFILE,
    ClientProfile,
    Json,
    Listener,
    LogFn,
    ProgressFn,
    RelayedRequest,
    Requester,
    ServerInfo,
)
from toolhub.owned import unwrapped

CLIENT_INFO = {"name": "toolhub", "version": __version__}
SUBSCRIPTION_META_KEY = "io.modelcontextprotocol/subscriptionId"
# A server that ignores methods it does not know is asked for the modern revision for so long. Those that know it answer
# within milliseconds of their start, which this time includes.
_DISCOVER_S = 5.0
_DISCOVER_HEADERS = {MCP_PROTOCOL_VERSION_HEADER: LATEST_MODERN_VERSION, MCP_METHOD_HEADER: "server/discover"}
# How often a server may answer that it needs more from the client. The specification's own limit.
_MAX_ROUNDS = 10
TASK_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
# The parameter that a request over HTTP repeats in `Mcp-Name`. The SDK knows nothing of the tasks extension (SEP-2663).
_NAMED_BY = {**NAME_BEARING_METHODS, **dict.fromkeys(TASK_METHODS, "taskId")}
# A server that ended a subscription is asked for a new one after this pause.
_LISTEN_AGAIN_S = 5.0
# The lists of a server, and how a subscription names the notices of their changes.
_CHANGING = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
# Requests of one server that wait for their answers at once. Each costs the hub some 8 KB.
_MOST_QUESTIONS = 100
# What the SDK's client answers to questions that it does not support, word by word.
_UNSUPPORTED = {
    "sampling/createMessage": "Sampling not supported",
    "elicitation/create": "Elicitation not supported",
    "roots/list": "List roots not supported",
}

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Relaying:
    """One request of a client that the server is answering."""

    requester: Requester
    progress_token: int | str | None


class _LogFilter:
    """The client of a request of revision 2026-07-28 to an older server, which sends log lines without being asked."""

    def __init__(self, requester: Requester, params: Json | None) -> None:
        self._requester = requester
        self._params = params
        self.id = requester.id
        self.listener = requester.listener

    def notify(self, method: str, params: Json | None) -> None:
        if method != "notifications/message" or bridge.wants_log(self._params, (params or {}).get("level")):
            self._requester.notify(method, params)

    async def request(self, method: str, params: Json | None) -> Json:
        return await self._requester.request(method, params)

    def close_stream(self) -> None:
        """The client could not resume it."""


class McpChannel:
    """A conversation that has been set up. See `channel.base.Channel` for the contract."""

    def __init__(
        self, server: str, dispatcher: Peer, *, evidence: Callable[[], ExitInfo], tasks: anyio.abc.TaskGroup
    ) -> None:
        self._server = server
        self._tasks = tasks
        self.info = ServerInfo("", "", "")
        self.pid: int | None = None
        self.on_tools_changed: Callable[[], None] | None = None
        self.listeners: Collection[Listener] = ()
        self._dispatcher = dispatcher
        self._evidence = evidence
        self._log_listeners: dict[int, LogFn] = {}
        self._numbers = itertools.count(1)
        self._relaying: dict[int | str, _Relaying] = {}
        self._own_requests = 0
        self._hearing: int | None = None
        """The request that listens for changes; None: nothing listens."""
        self._questions = 0
        """The requests of the server that clients have not answered yet."""
        self._header_maps: dict[str, Any] = {}
        """For each tool the parameters that are repeated in headers, as it was listed last."""
        dispatcher.on_raw_notification = self._notified

    # --- requests to the server -------------------------------------------------------------------------------------

    async def list_tools(self) -> list[Json]:
        self._hear_changes()
        listed = await all_pages(
            self._server, "tools/list", "tools", lambda at: self.request("tools/list", {"cursor": at} if at else None)
        )
        tools = [tool for tool in listed if isinstance(tool.get("name"), str)]
        self._header_maps = {tool["name"]: header_map(tool) for tool in tools}
        return tools

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressFn | None = None,
        on_log: LogFn | None = None,
    ) -> Json:
        number = next(self._numbers)
        options: CallOptions = {"request_id": number}
        if on_progress is not None:
            options["on_progress"] = cast(ProgressFnT, on_progress)
        if self.info.era == "modern":
            params = with_envelope(params, self.info.protocol)
            options["headers"] = self._modern_headers(method, params, {})
        self._own_requests += 1
        if on_log is not None:
            self._log_listeners[number] = on_log
        try:
            return await self._send(method, params, options)
        finally:
            self._own_requests -= 1
            if on_log is not None:
                del self._log_listeners[number]

    async def relay(self, relayed: RelayedRequest) -> Json:
        if relayed.profile.era == self.info.era:
            return await self._relay(relayed)
        method, requester = relayed.method, relayed.requester
        if self.info.era == "handshake":
            translated = bridge.to_handshake(method, relayed.params)
            muted = _LogFilter(requester, relayed.params)
            return bridge.from_handshake(
                method, await self._relay(replace(relayed, params=translated, requester=muted))
            )
        return await self._relay_to_modern(relayed)

    async def _relay_to_modern(self, relayed: RelayedRequest) -> Json:
        """Pass on a request of the handshake era. What the server needs from the client is asked for in between."""
        self._hear_changes()
        method, requester = relayed.method, relayed.requester
        level = requester.listener.log_level if requester.listener is not None else None
        params = bridge.to_modern(method, relayed.params, relayed.profile.hello, level)
        for _ in range(_MAX_ROUNDS):
            result = await self._relay(replace(relayed, params=params))
            if result.get("resultType") != "input_required":
                return bridge.from_modern(result)
            params = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
            params["inputResponses"] = {
                key: await requester.request(question["method"], question.get("params"))
                for key, question in (result.get("inputRequests") or {}).items()
            }
            if "requestState" in result:
                params["requestState"] = result["requestState"]
        raise Refused(INTERNAL_ERROR, f"the server asked for more input {_MAX_ROUNDS} times")

    async def _relay(self, relayed: RelayedRequest) -> Json:
        number, params, token = next(self._numbers), relayed.params, None
        meta = (params or {}).get("_meta")
        if params is not None and isinstance(meta, dict) and "progressToken" in meta:
            token = meta["progressToken"]
            params = {**params, "_meta": {**meta, "progressToken": number}}
        options: CallOptions = {"request_id": number}
        if self.info.era == "modern":
            options["headers"] = self._modern_headers(relayed.method, params, relayed.headers)
        self._relaying[number] = _Relaying(relayed.requester, token)
        try:
            result = await self._send(relayed.method, params, options)
        finally:
            del self._relaying[number]
        return (
            with_subscription_id(result, relayed.requester.id) if relayed.method == "subscriptions/listen" else result
        )

    def _hear_changes(self) -> None:
        """Begin to listen to a server of revision 2026-07-28, which tells only subscribers that a list has changed.

        For the hub itself, and for clients of the handshake era, which are told without asking.
        """
        lists = [kind for kind in _CHANGING if (self.info.capabilities.get(kind) or {}).get("listChanged")]
        if self.info.era == "modern" and self._hearing is None and lists and not self._dispatcher.ended.is_set():
            self._hearing = next(self._numbers)
            self._tasks.start_soon(self._listen, self._hearing, lists)

    async def _listen(self, number: int, lists: list[str]) -> None:
        wanted = {"notifications": {_CHANGING[kind]: True for kind in lists}}
        params, method = with_envelope(wanted, self.info.protocol), "subscriptions/listen"
        while not self._dispatcher.ended.is_set():
            options: CallOptions = {"request_id": number, "headers": self._modern_headers(method, params, {})}
            try:
                await self._send(method, params, options)
            except (Refused, ProtocolViolation) as exc:
                logger.debug("server %r does not tell of changes: %s", self._server, exc)
                return
            except ChannelClosed:
                pass  # its stream broke, or it has ended
            await anyio.sleep(_LISTEN_AGAIN_S)
            number = self._hearing = next(self._numbers)
            for kind in lists:  # a change during the pause would be missed
                self._notified(f"notifications/{kind}/list_changed", None)

    async def knows_modern_era(self) -> bool:
        if self.info.era == "modern":
            return True
        with anyio.move_on_after(_DISCOVER_S):
            try:
                asked: CallOptions = {"request_id": next(self._numbers), "headers": _DISCOVER_HEADERS}
                await self._send("server/discover", with_envelope(None, LATEST_MODERN_VERSION), asked)
            except Refused as exc:
                # A server of both eras says that this connection is of the other one.
                return exc.code != METHOD_NOT_FOUND
            except (ChannelClosed, ProtocolViolation):
                return False
            return True
        return False

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        await self._dispatcher.notify(method, params, {"headers": {MCP_PROTOCOL_VERSION_HEADER: self.info.protocol}})

    async def _send(self, method: str, params: Mapping[str, Any] | None, options: CallOptions) -> Json:
        try:
            return await self._dispatcher.request(method, params, options)
        except MCPError as exc:
            raise self._translated(exc) from exc

    def _translated(self, exc: MCPError) -> Exception:
        if is_closed(exc):
            return ChannelClosed(exc.message, sent="no" if exc.error.data is LocalError.UNSENT else "maybe")
        if exc.error.data is LocalError.UNREADABLE:
            return ProtocolViolation(f"server {self._server!r} sent an incomplete answer, or one that is not JSON-RPC")
        return Refused(exc.code, exc.message, exc.error.data)

    def _modern_headers(
        self, method: str, params: Mapping[str, Any] | None, given: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the headers that revision 2026-07-28 requires: a copy of some parameters. `given` wins."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.info.protocol, MCP_METHOD_HEADER: method}
        named, sent = _NAMED_BY.get(method), params or {}
        if named is not None and isinstance(name := sent.get(named), str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            arguments = sent.get("arguments")
            if method == "tools/call" and not given and (known := self._header_maps.get(name)):
                headers |= mcp_param_headers(known, arguments if isinstance(arguments, Mapping) else {})
        return headers | dict(given)

    # --- what the server asks and says ------------------------------------------------------------------------------

    async def asked(
        self, context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
    ) -> Json:
        """Answer a request of the server: the client answers whose request is in flight."""
        if method == "ping":
            return {}
        if self._questions >= _MOST_QUESTIONS:
            raise MCPError(INVALID_REQUEST, f"{_MOST_QUESTIONS} requests of this server wait for their answers already")
        self._questions += 1
        try:
            return await self._answerer(method).request(method, dict(params) if params is not None else None)
        except Refused as exc:
            raise MCPError(exc.code, exc.message, exc.data) from exc
        finally:
            self._questions -= 1

    def _answerer(self, method: str) -> Requester | Listener:
        """Return the client that a question is for. Most transports do not say which request it belongs to."""
        newest = self._only_client()
        if newest is not None:
            return newest
        if not self._relaying and not self._own_requests and len(self.listeners) == 1:
            return next(iter(self.listeners))
        if self._relaying:
            raise MCPError(
                INVALID_REQUEST,
                f"toolhub cannot tell which client {method} is for: several use this session. "
                "Configure the server with `share: task`",
            )
        raise MCPError(INVALID_REQUEST, _UNSUPPORTED.get(method, f"No client could answer {method}"))

    def _only_client(self) -> Requester | None:
        """Return the newest request in flight if all that are belong to one client."""
        if not self._relaying or self._own_requests:
            return None
        running = [one.requester for one in self._relaying.values()]
        listener = running[-1].listener
        is_one = len(running) == 1 or (listener is not None and all(one.listener is listener for one in running))
        return running[-1] if is_one else None

    def _notified(self, method: str, params: Mapping[str, Any] | None) -> Callable[[], Awaitable[None]] | None:
        sent = dict(params) if params is not None else None
        meta = (sent or {}).get("_meta")
        subscription = meta.get(SUBSCRIPTION_META_KEY) if isinstance(meta, dict) else None
        if subscription is not None:
            listening = self._relaying.get(_as_number(subscription))
            if self._hearing is not None and _as_number(subscription) == self._hearing:
                if method != "notifications/subscriptions/acknowledged":
                    self._said(method, None)
            elif listening is not None and sent is not None:
                listening.requester.notify(method, with_subscription_id(sent, listening.requester.id))
        elif method == "notifications/progress":
            self._progressed(sent or {})
        elif method == "notifications/message":
            return self._logged(method, sent)
        elif method != "notifications/cancelled":  # the dispatcher has cancelled the question already
            self._said(method, sent)
        if method == "notifications/tools/list_changed" and self.on_tools_changed is not None:
            self.on_tools_changed()
        return None

    def _progressed(self, params: Json) -> None:
        relaying = self._relaying.get(_as_number(params.get("progressToken")))
        if relaying is not None and relaying.progress_token is not None:
            relaying.requester.notify("notifications/progress", {**params, "progressToken": relaying.progress_token})

    def _logged(self, method: str, params: Json | None) -> Callable[[], Awaitable[None]] | None:
        """Log lines carry no request id, so they are passed on only where their client is known."""
        newest = self._only_client()
        if newest is not None:
            newest.notify(method, params)
        elif not self._relaying and not self._own_requests:
            for listener in tuple(self.listeners):
                listener.notify(method, params)
        return partial(_tell, list(self._log_listeners.values()), params) if self._log_listeners else None

    def _said(self, method: str, params: Json | None) -> None:
        uri = (params or {}).get("uri") if method == "notifications/resources/updated" else None
        listeners = tuple(self.listeners)
        for listener in listeners:
            if uri is None or len(listeners) == 1 or uri in listener.subscriptions:
                listener.notify(method, params)

    def stream_closed(self, number: int | str) -> None:
        """The server has closed the stream of an answer early, on purpose."""
        relaying = self._relaying.get(number)
        if relaying is not None:
            relaying.requester.close_stream()

    async def wait_closed(self) -> None:
        await self._dispatcher.ended.wait()

    def exit_info(self) -> ExitInfo:
        return self._evidence()

    # --- set-up -----------------------------------------------------------------------------------------------------

    async def open(self, spec: ServerSpec, profile: ClientProfile) -> None:
        """Do the handshake, or ask a modern server for what it offers. A server that refuses gets the other one."""
        if profile.era == "modern" or (spec.protocol == "auto" and profile == OWN_PROFILE):
            if spec.transport != "sse" and await self._discover():
                return
        try:
            await self._initialize(profile.hello)
        except MCPError as exc:
            if is_closed(exc) or spec.transport == "sse":
                raise
            if await self._discover():
                return
            if exc.code == UNSUPPORTED_PROTOCOL_VERSION:  # the connection may be bound to the era of its first request
                raise EraRefused(f"it refused the handshake: {exc.message}") from exc
            raise

    async def _initialize(self, hello: Json | None) -> None:
        own = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": CLIENT_INFO}
        # The protocol forbids to cancel `initialize`.
        result = await self._dispatcher.send_raw_request("initialize", hello or own, {"cancel_on_abandon": False})
        protocol, capabilities = result.get("protocolVersion"), result.get("capabilities")
        if not isinstance(protocol, str) or not isinstance(capabilities, dict):
            raise OpenFailed(
                "the answer to the handshake is not valid MCP: protocolVersion or capabilities are missing"
            )
        if protocol not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise OpenFailed(f"it speaks revision {protocol!r} of MCP, which toolhub does not know")
        self.info = server_info(result, result.get("serverInfo"), protocol)
        await self.notify("notifications/initialized", None)

    async def _discover(self) -> bool:
        """Ask for the modern revision; return whether the server speaks it."""
        with anyio.move_on_after(_DISCOVER_S):
            try:
                result = await self._dispatcher.send_raw_request(
                    "server/discover", with_envelope(None, LATEST_MODERN_VERSION), {"headers": _DISCOVER_HEADERS}
                )
            except MCPError as exc:
                if is_closed(exc):
                    raise EraRefused("it ended the connection when it was asked for server/discover") from exc
                return False
            if LATEST_MODERN_VERSION in (result.get("supportedVersions") or ()):
                meta = result.get("_meta")
                named = meta.get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None
                self.info = server_info(result, named, LATEST_MODERN_VERSION)
                return True
        return False


def is_closed(exc: MCPError) -> bool:
    """Whether the connection has ended. A server may answer with the same code while it goes on."""
    return exc.error.data in (LocalError.CLOSED, LocalError.UNSENT)


def server_info(hello: Json, named: Any, protocol: str) -> ServerInfo:
    name = named if isinstance(named, dict) else {}
    capabilities, instructions = hello.get("capabilities"), hello.get("instructions")
    return ServerInfo(
        name=str(name.get("name", "")),
        version=str(name.get("version", "")),
        protocol=protocol,
        capabilities=capabilities if isinstance(capabilities, dict) else {},
        instructions=instructions if isinstance(instructions, str) else None,
        hello=hello,
    )


def with_envelope(params: Mapping[str, Any] | None, protocol: str) -> Json:
    """Add to `_meta` what revision 2026-07-28 requires with every request, with toolhub as the client."""
    meta = (params or {}).get("_meta")
    envelope = {
        PROTOCOL_VERSION_META_KEY: protocol,
        CLIENT_INFO_META_KEY: CLIENT_INFO,
        CLIENT_CAPABILITIES_META_KEY: {},
    }
    return {**(params or {}), "_meta": {**(meta if isinstance(meta, dict) else {}), **envelope}}


def with_subscription_id(value: Json, subscription: int | str) -> Json:
    """Replace the id of a subscription in `_meta`: a client knows its subscription by the id of its own request."""
    meta = value.get("_meta")
    return {**value, "_meta": {**(meta if isinstance(meta, dict) else {}), SUBSCRIPTION_META_KEY: subscription}}


def header_map(tool: Json) -> Any:
    """Return which parameters of a tool are repeated in headers."""
    schema = tool.get("inputSchema")
    return x_mcp_header_map(schema) if isinstance(schema, dict) else {}


# Python refuses to read a number of thousands of digits.
_MOST_DIGITS = 18


def _as_number(key: Any) -> int | str:
    """Return the key of a request of ours. A server may send an id back as text."""
    if isinstance(key, str):
        return int(key) if len(key) <= _MOST_DIGITS and key.isdecimal() else ""
    return key if isinstance(key, int) else ""


async def _tell(listeners: list[LogFn], params: Mapping[str, Any] | None) -> None:
    for listener in listeners:
        try:
            await listener(dict(params or {}))
        except Exception:
            logger.exception("log listener raised")


@asynccontextmanager
async def conversation(
    spec: ServerSpec, dispatcher: Peer, evidence: Callable[[], ExitInfo], profile: ClientProfile = OWN_PROFILE
) -> AsyncIterator[McpChannel]:
    """Set up a conversation over a dispatcher; leaving ends it, not the transport."""
    async with anyio.create_task_group() as running:
        channel = McpChannel(spec.name, dispatcher, evidence=evidence, tasks=running)
        await running.start(dispatcher.run, channel.asked, _ignored)
        with anyio.move_on_after(spec.start_timeout_s) as start:
            await channel.open(spec, profile)
        if start.cancelled_caught:
            raise OpenFailed(f"it did not answer the handshake within {spec.start_timeout_s:g} s (start_timeout_s)")
        yield channel
        running.cancel_scope.cancel()


async def _ignored(context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> None:
    """Notifications arrive unparsed, by `on_raw_notification`."""


def open_reason(exc: BaseException) -> str:
    """Say why a conversation could not be set up."""
    cause = unwrapped(exc)
    if isinstance(cause, OpenFailed):
        return str(cause)
    if isinstance(cause, MCPError) and is_closed(cause):
        return "it ended the connection during the handshake"
    if isinstance(cause, MCPError):
        return f"the handshake was refused: {cause.message} (code {cause.code})"
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
