"""The gateway over Streamable HTTP, for both generations of the protocol.

Up to revision 2025-11-25 a client begins a session, which has a task of its own or names one with the header
`X-Toolhub-Task`. A request is answered on an event stream that the client can resume. A session ends with its task, by
DELETE, when its client was silent for the length of a lease, and soon after its stream was closed.

A request of revision 2026-07-28 stands alone. It uses the task that it names, or the one that all such clients share;
`handles.py` says what they never share.

A request with a rollout's token uses the rollout's task, and a session that began with the same token.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio
import anyio.abc
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_NAME_HEADER,
    MCP_PARAM_HEADER_PREFIX,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp_types import HEADER_MISMATCH
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from toolhub.channel.jsonrpc.pipes import decode
from toolhub.channel.mcp import TASK_METHODS
from toolhub.errors import ToolhubError
from toolhub.hub import Hub
from toolhub.model import Json
from toolhub.serve.guard import ONLY_TASK
from toolhub.serve.mcp.client import INVALID_PARAMS, INVALID_REQUEST, ClientRequest, McpClient
from toolhub.serve.mcp.gateway import Gateway, error_object
from toolhub.serve.mcp.handles import HANDLE_META, carrying, taken_handle
from toolhub.serve.mcp.streams import EventLog, EventStream, write_json
from toolhub.serve.responses import error_response
from toolhub.task import HubTask
from toolhub.task_ids import check_task_id

TASK_HEADER, SESSION_HEADER, VERSION_HEADER = "x-toolhub-task", "mcp-session-id", "mcp-protocol-version"
# The servers that a client wants to know of, separated by commas.
SERVERS_HEADER = "x-toolhub-servers"
# Sent by `toolhub stdio --hub`, whose client knows nothing of headers.
STDIO_HEADER = "x-toolhub-stdio"
PARSE_ERROR = -32700
# The task of clients of revision 2026-07-28 that name none, and the beginning of the names of sessions' own tasks.
COMMON_TASK = "mcp"
# The first revision whose clients understand an event without data.
RESUMABLE_SINCE = "2025-11-25"
# A request that takes longer than this begins its response before its answer is there.
_BEGIN_AFTER_S, _TICK_S = 0.2, 0.1
# A client that closes its connection cancels its request of revision 2026-07-28. It is watched for after this time.
_WATCH_AFTER_S = 0.1
# One of revision 2026-07-28 waits longer, because the status of its response depends on the answer.
_BEGIN_MODERN_AFTER_S = 10.0
# A client that closed its stream and has no request in flight comes back within this time, or it is gone.
GONE_AFTER_S = 20.0
_MOST_SESSIONS = 10_000
# A task whose handle was given out lives for so long, until a request brings the handle.
_UNCLAIMED_LEASE_S = 60.0


@dataclass(eq=False)
class _Session:
    """One session of a client of the handshake era."""

    id: str
    log: EventLog = field(default_factory=EventLog)
    rollout: str | None = None
    """The only task that it may use; None: any."""
    only: frozenset[str] | None = None
    """The servers that its first request has named; None: all."""
    used: dict[str, HubTask] = field(default_factory=dict)
    """The tasks that its requests have used, by id."""
    in_flight: int = 0
    idle_since: float = 0.0
    had_stream: bool = False
    client: McpClient = field(init=False)
    standing: EventStream = field(init=False)

    def __post_init__(self) -> None:
        self.standing = self.log.open(is_resumable=True)
        self.client = McpClient(self.standing)

    @property
    def own_task(self) -> str:
        return f"{COMMON_TASK}-{self.id}"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(SESSION_HEADER.encode(), self.id.encode())]


@dataclass(eq=False)
class _Slow:
    """What is done for a request that is not answered at a time."""

    at: float
    act: Callable[[], None]


def _nothing() -> None:
    pass


class McpEndpoint:
    """The ASGI application at `/mcp`. Enter `running()` before serving it. lease: of the tasks that it opens."""

    def __init__(self, hub: Hub, *, lease: float) -> None:
        self._hub = hub
        self._lease = lease
        self.gateway: Gateway
        self.sessions: dict[str, _Session] = {}
        self._slow: set[_Slow] = set()
        self._tasks: anyio.abc.TaskGroup

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as self._tasks:
            self.gateway = Gateway(self._hub.config.hub, self._tasks)
            self._tasks.start_soon(self._tick)
            yield
            self._tasks.cancel_scope.cancel()  # the hub closes every task when it ends

    def end_subscriptions(self) -> None:
        """End the streams that clients of revision 2026-07-28 hold open for notifications. Other requests go on."""
        self.gateway.end_subscriptions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, rollout = Headers(scope=scope), scope.get(ONLY_TASK)
        version, named = headers.get(VERSION_HEADER), headers.get(TASK_HEADER)
        try:
            if named:
                check_task_id(named)
            if rollout is not None and named not in (None, rollout):
                raise _not_of_rollout(TASK_HEADER, named or "")
            if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
                await self._modern(scope, headers, receive, send)
            elif scope["method"] == "POST":
                await self._post(headers, rollout, receive, send)
            elif scope["method"] == "GET":
                await self._get(headers, rollout, receive, send)
            elif scope["method"] == "DELETE":
                await self._delete(headers, rollout, send)
            else:
                await _refuse(send, 405, INVALID_REQUEST, "Method Not Allowed")
        except _HttpRefusal as exc:
            await _refuse(send, exc.status, exc.code, str(exc))
        except ToolhubError as exc:
            await error_response(exc)(scope, receive, send)

    # --- the handshake era ------------------------------------------------------------------------------------------

    async def _post(self, headers: Headers, rollout: str | None, receive: Receive, send: Send) -> None:
        _check_accept(headers, "application/json", "text/event-stream")
        message = await _read_message(receive)
        method, number = message.get("method"), message.get("id")
        session = self._session(headers, rollout, begins=method == "initialize")
        session.in_flight += 1
        established = session.id in self.sessions
        try:
            task = await self._task_of(session, headers)
            with task.in_use():
                if not established:
                    session.only = _named_servers(headers, task)
                if isinstance(method, str) and number is not None:
                    await self._answer(session, task, message, headers, send)
                    established = established or bool(session.client.version)
                elif isinstance(method, str):
                    params = message.get("params")
                    await self.gateway.notified(
                        task, session.client, method, params if isinstance(params, dict) else None
                    )
                    await write_json(send, 202, None, session.headers)
                else:
                    session.client.take_answer(message)
                    await write_json(send, 202, None, session.headers)
        finally:
            session.in_flight -= 1
            session.idle_since = anyio.current_time()
            if established and method == "initialize":
                self.sessions[session.id] = session
            elif not established:
                self._end(session)

    async def _answer(self, session: _Session, task: HubTask, message: Json, headers: Headers, send: Send) -> None:
        client, number = session.client, message["id"]
        only = _narrowed(session.only, _named_servers(headers, task))
        params = message.get("params")
        version = client.version or str((params or {}).get("protocolVersion"))
        stream = session.log.open(is_resumable=version >= RESUMABLE_SINCE)
        request = ClientRequest(
            number, message["method"], params, task, stream, client, version, headers=_param_headers(headers), only=only
        )
        written = self._begins_later(stream, send, session.headers, _BEGIN_AFTER_S)
        scope = client.running[number] = anyio.CancelScope()
        answer: Json | None = None
        try:
            with scope:
                answer = await self.gateway.respond(request)
        finally:
            if client.running.get(number) is scope:
                del client.running[number]
            stream.finish(answer)
            await written()

    def _begins_later(
        self, stream: EventStream, send: Send, headers: list[tuple[bytes, bytes]], after: float
    ) -> Callable[[], Awaitable[None]]:
        """Let a response begin when there is something to write. Return what waits until it is written."""
        done: anyio.Event | None = None

        async def write(done: anyio.Event) -> None:
            try:
                await stream.write(send, headers)
            finally:
                done.set()

        def begin() -> None:
            nonlocal done
            self._slow.discard(slow)
            if not stream.has_begun:
                stream.has_begun = True
                done = anyio.Event()
                self._tasks.start_soon(write, done)

        async def written() -> None:
            self._slow.discard(slow)
            # The session keeps the stream for a while; it must not keep this connection, nor wait for the collector.
            stream.on_first = slow.act = _nothing
            if done is not None:
                await done.wait()
            elif not stream.has_begun:
                await stream.write(send, headers)

        stream.on_first = begin
        slow = _Slow(anyio.current_time() + after, begin)
        self._slow.add(slow)
        return written

    async def _get(self, headers: Headers, rollout: str | None, receive: Receive, send: Send) -> None:
        _check_accept(headers, "text/event-stream")
        session = self._session(headers, rollout)
        stream, after = session.standing, None
        if (last := headers.get("last-event-id")) is not None:
            found = session.log.find(last)
            if found is None:
                raise _HttpRefusal(404, "the event of Last-Event-ID is not kept any more")
            stream, after = found
        task = await self._task_of(session, headers)
        session.in_flight += 1
        session.had_stream = session.had_stream or stream is session.standing
        try:
            with task.in_use():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_on_disconnect, receive, tasks.cancel_scope)
                    await stream.write(send, session.headers, after=after)
                    tasks.cancel_scope.cancel()
        finally:
            session.in_flight -= 1
            session.idle_since = anyio.current_time()

    async def _delete(self, headers: Headers, rollout: str | None, send: Send) -> None:
        session = self._session(headers, rollout)
        self._end(session)
        await write_json(send, 200, None, session.headers)

    def _session(self, headers: Headers, rollout: str | None, *, begins: bool = False) -> _Session:
        """Return the session of a request; a new one for a request that begins one."""
        session_id = headers.get(SESSION_HEADER)
        if session_id is not None:
            session = self.sessions.get(session_id)
            if session is None or session.rollout != rollout:
                raise _HttpRefusal(404, "Session not found")
            return session
        if not begins:
            raise _HttpRefusal(400, "Bad Request: Missing session ID")
        if len(self.sessions) >= _MOST_SESSIONS:
            raise _HttpRefusal(503, "Too many open sessions")
        return _Session(secrets.token_hex(16), rollout=rollout, idle_since=anyio.current_time())

    async def _task_of(self, session: _Session, headers: Headers) -> HubTask:
        """Return the task of a request, opened if needed. A session ends with a task that it has used."""
        task_id = session.rollout or headers.get(TASK_HEADER) or session.own_task
        task = session.used.get(task_id)
        if task is None and session.rollout is not None:
            task = session.used[task_id] = self._hub.get_task(task_id)
        elif task is None:
            task = session.used[task_id] = await self._hub.ensure_task(task_id, lease=self._lease)
        elif not self._hub.is_open(task):
            self._end(session)
            raise _HttpRefusal(404, "Session not found")
        return task

    def _end(self, session: _Session) -> None:
        """End a session and its own task. Tasks that it has named go on."""
        self.sessions.pop(session.id, None)
        session.client.close()
        session.log.detach()
        self._tasks.start_soon(self._hub.close_task, session.own_task)

    async def _tick(self) -> None:
        """Begin the responses of slow requests, and end the sessions of clients that are gone."""
        while True:
            await anyio.sleep(_TICK_S)
            now = anyio.current_time()
            for slow in [one for one in self._slow if one.at <= now]:
                slow.act()
            for session in list(self.sessions.values()):
                limit = min(GONE_AFTER_S, self._lease) if session.had_stream else self._lease
                if session.rollout is not None and not all(map(self._hub.is_open, session.used.values())):
                    limit = 0.0
                if not session.in_flight and now - session.idle_since >= limit:
                    self._end(session)

    # --- revision 2026-07-28 ----------------------------------------------------------------------------------------

    async def _modern(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await write_json(send, 405, None, [(b"allow", b"POST")])
            return
        _check_accept(headers, "application/json", "text/event-stream")
        message = await _read_message(receive)
        if "id" not in message:
            # There is nothing that a notification could be about: a client cancels by closing the connection.
            unsupported = unsupported_protocol_version_rejection(headers.get(VERSION_HEADER, ""))
            if unsupported is not None:
                await _reject(send, unsupported, None)
            else:
                await write_json(send, 202, None, [])
            return
        number = message["id"]
        if not isinstance(message.get("method"), str) or not isinstance(number, int | str):
            raise _HttpRefusal(400, "Body must be a single JSON-RPC request or notification object")
        rejection = _modern_rejection(message, headers)
        if rejection is not None:
            await _reject(send, rejection, number)
            return
        handle, params = taken_handle(message.get("params"))
        rollout = scope.get(ONLY_TASK)
        if rollout is not None:
            if handle not in (None, rollout):
                raise _not_of_rollout(HANDLE_META, handle or "")
            task = self._hub.get_task(rollout)
        elif handle is not None:
            try:
                task = self._hub.get_task(check_task_id(handle))
            except ToolhubError as exc:
                await _reject(send, InboundLadderRejection(INVALID_PARAMS, f"{HANDLE_META}: {exc}"), number)
                return
            task.lease = self._lease
        else:
            task = await self._hub.ensure_task(headers.get(TASK_HEADER) or COMMON_TASK, lease=self._lease)
        names_task = handle is not None or TASK_HEADER in headers or rollout is not None
        message["params"] = params
        with task.in_use():
            await self._answer_modern(task, message, headers, receive, send, handle=handle, names_task=names_task)

    async def _new_task(self) -> HubTask:
        """Open a task for a client that has named none. It ends soon unless the client comes back with its handle."""
        task_id = f"{COMMON_TASK}-{secrets.token_hex(16)}"
        return await self._hub.open_task(task_id, lease=min(self._lease, _UNCLAIMED_LEASE_S))

    async def _answer_modern(
        self,
        task: HubTask,
        message: Json,
        headers: Headers,
        receive: Receive,
        send: Send,
        *,
        handle: str | None,
        names_task: bool,
    ) -> None:
        stream = EventStream("", is_resumable=False)
        request = ClientRequest(
            message["id"],
            message["method"],
            message.get("params"),
            task,
            stream,
            version=headers[VERSION_HEADER],
            headers=_param_headers(headers),
            new_task=None if names_task else self._new_task,
            only=_named_servers(headers, task),
        )
        written = self._begins_later(stream, send, [], _BEGIN_MODERN_AFTER_S)
        with self._watched(receive):
            answer = await self.gateway.respond(request)
            if handle is not None and "result" in answer:
                answer["result"] = carrying(answer["result"], handle)
            if stream.has_begun:
                stream.finish(answer)
            else:
                stream.has_begun = True
                await write_json(send, _status_of(answer), answer, [])
            await written()
        stream.finish(None)

    @contextmanager
    def _watched(self, receive: Receive) -> Iterator[None]:
        """Cancel the block when the client closes its connection. Fast requests do not pay for the watching task."""
        watcher: anyio.CancelScope | None = None

        async def watch(own: anyio.CancelScope) -> None:
            with own:
                await _cancel_on_disconnect(receive, scope)

        def start() -> None:
            nonlocal watcher
            self._slow.discard(slow)
            watcher = anyio.CancelScope()
            self._tasks.start_soon(watch, watcher)

        slow = _Slow(anyio.current_time() + _WATCH_AFTER_S, start)
        self._slow.add(slow)
        try:
            with anyio.CancelScope() as scope:
                yield
        finally:
            self._slow.discard(slow)
            slow.act = _nothing  # which would wait for the collector otherwise
            if watcher is not None:
                watcher.cancel()


class _HttpRefusal(Exception):
    """A request that is refused before it reaches the gateway."""

    def __init__(self, status: int, message: str, code: int = INVALID_REQUEST) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def _not_of_rollout(where: str, task_id: str) -> _HttpRefusal:
    return _HttpRefusal(
        403, f"{where}: this token opens only its rollout's task, not {ascii(task_id[:64])}; leave the name out"
    )


async def _refuse(send: Send, status: int, code: int, message: str) -> None:
    await write_json(send, status, {"jsonrpc": "2.0", "id": None, "error": error_object(code, message)}, [])


async def _reject(send: Send, rejection: InboundLadderRejection, number: int | str | None) -> None:
    error = error_object(rejection.code, rejection.message, rejection.data)
    body = {"jsonrpc": "2.0", "id": number, "error": error}
    await write_json(send, ERROR_CODE_HTTP_STATUS.get(rejection.code, 200), body, [])


def _modern_rejection(message: Json, headers: Headers) -> InboundLadderRejection | None:
    """Return why a request of revision 2026-07-28 is refused: its envelope, or headers that say something else."""
    pairs = headers.items()
    duplicated = find_duplicated_routing_header(pairs)
    if duplicated is not None:
        return InboundLadderRejection(HEADER_MISMATCH, f"{duplicated} header appears more than once")
    verdict = classify_inbound_request(message, headers=dict(pairs))
    if isinstance(verdict, InboundLadderRejection):
        return verdict
    named, task_id = headers.get(MCP_NAME_HEADER), message["params"].get("taskId")
    if message["method"] in TASK_METHODS and named is not None and decode_header_value(named) != task_id:
        return InboundLadderRejection(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the task's id")
    return None


def _status_of(answer: Json) -> int:
    error = answer.get("error")
    return ERROR_CODE_HTTP_STATUS.get(error["code"], 200) if error is not None else 200


def _param_headers(headers: Headers) -> Mapping[str, str] | None:
    if STDIO_HEADER in headers:
        return None
    prefix = MCP_PARAM_HEADER_PREFIX.lower()
    return {name: value for name, value in headers.items() if name.startswith(prefix)}


def _named_servers(headers: Headers, task: HubTask) -> frozenset[str] | None:
    """Return the servers that a request names; None without the header."""
    given = headers.getlist(SERVERS_HEADER)
    if not given:
        return None
    names = frozenset(name.strip() for name in ",".join(given).split(",") if name.strip())
    if unknown := names.difference(task.servers):
        raise _HttpRefusal(400, f"X-Toolhub-Servers: there is no server {min(unknown)!r}", INVALID_PARAMS)
    return names


def _narrowed(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the servers that both allow; None allows all."""
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _check_accept(headers: Headers, *needed: str) -> None:
    accepted = [kind.partition(";")[0].strip().lower() for kind in headers.get("accept", "*/*").split(",")]
    for kind in needed:
        if not {kind, "*/*", kind.partition("/")[0] + "/*"}.intersection(accepted):
            raise _HttpRefusal(406, f"Not Acceptable: Client must accept {kind}")


async def _read_message(receive: Receive) -> Json:
    """Return the JSON-RPC message of a body. `LimitedProtocol` bounds its size and its time."""
    body = bytearray()
    while True:
        part = await receive()
        if part["type"] == "http.disconnect":
            raise _HttpRefusal(400, "the connection ended within the body")
        body += part.get("body", b"")
        if not part.get("more_body", False):
            break
    try:
        message = await decode(bytes(body))
    except (ValueError, RecursionError):
        raise _HttpRefusal(400, "Parse error", PARSE_ERROR) from None
    if (
        not isinstance(message, dict)
        or not isinstance(message.get("params"), dict | None)
        or not isinstance(message.get("id"), int | str | None)
    ):
        raise _HttpRefusal(400, "Body must be a single JSON-RPC request or notification object")
    return message


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
