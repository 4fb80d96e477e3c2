"""Conversations over HTTP: streamable HTTP, and the legacy SSE transport.

Both carry the messages of a `Peer`, as pipes do. Each message to the server is a POST in a task of its own. Over
streamable HTTP the response to a request is its answer: JSON, or events of which the answer is the last. A stream that
ends before it is resumed. Over legacy SSE all messages from the server are events of one stream.

A connection that breaks ends the conversation, because the server may have lost its state. Half an answer costs its own
call only. An answer has a largest size, all of a body or each event of a stream; a larger one ends the conversation.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio
import anyio.abc
import httpx2
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, RequestId
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import to_json

from toolhub.channel.base import ExitInfo, OpenFailed
from toolhub.channel.event_buffer import EventBuffer, EventTooLarge, ServerEvent
from toolhub.channel.http_client import ConnectFailed, ConnectionBroken, HttpClient, HttpOrigin, HttpResponse
from toolhub.channel.jsonrpc.peer import LocalError, Peer
from toolhub.channel.jsonrpc.pipes import decode
from toolhub.channel.mcp import McpChannel, conversation, open_reason
from toolhub.config import ServerSpec
from toolhub.model import OWN_PROFILE, ClientProfile, Json
from toolhub.overload import overload_in_http
from toolhub.owned import unwrapped

_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
_JSON, _EVENTS = "application/json", "text/event-stream"
# Cleaning up a conversation (DELETE of the session) must not hold up a task's end.
_CLOSE_S = 2.0
# A server that does not read must not keep tasks of cancelled calls for longer.
_CANCEL_S = 1.0
# Notices and answers that the server has not taken yet. They do not wait for room, so it is given up beyond this.
_MOST_UNSENT_BYTES = 1 << 26
# How a stream is resumed, as the SDK's client does.
_RESUME_MS = 1000
_RESUME_ATTEMPTS = 2
# With these a server says that it does not know a session. A server that is only busy uses them for anything.
_ENDINGS = frozenset({CONNECTION_CLOSED, INVALID_REQUEST})

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_http(spec: ServerSpec, profile: ClientProfile = OWN_PROFILE, *, limit: int) -> AsyncIterator[McpChannel]:
    """Connect to a streamable HTTP or legacy SSE server. Raises OpenFailed.

    limit: bytes of the largest answer.
    """
    try:
        client = HttpClient(spec.url or "", spec.headers, connect_timeout=spec.start_timeout_s)
    except ValueError as exc:
        raise OpenFailed(f"its url is no address: {exc}") from exc
    kind = LegacySse if spec.transport == "sse" else StreamableHttp
    opened = False
    transport: HttpTransport | None = None
    try:
        async with anyio.create_task_group() as tasks:
            transport = kind(client, tasks, limit)
            try:
                async with conversation(spec, Peer(transport, transport), transport.exit_info, profile) as channel:
                    transport.on_stream_end = channel.stream_closed
                    opened = True
                    yield channel
                with anyio.move_on_after(_CLOSE_S):
                    await transport.end_session()
            finally:
                tasks.cancel_scope.cancel()
    except Exception as exc:
        if opened or transport is None:
            raise
        reason = transport.failure or f"{open_reason(exc)} ({client.address})"
        raise OpenFailed(reason) from unwrapped(exc)
    finally:
        client.close()


class HttpTransport(ABC):
    """Source and sink of a `Peer`. A message is posted by a task of `tasks`, which ends with the conversation."""

    is_full = False

    def __init__(self, client: HttpClient, tasks: anyio.abc.TaskGroup, limit: int) -> None:
        self.failure = ""
        """Why the conversation has ended by itself."""
        self.on_stream_end: Callable[[RequestId], None] = lambda number: None
        """Called when the server has ended the stream of a request before its answer, to be resumed (SEP-1699)."""
        self._client = client
        self._tasks = tasks
        self._limit = limit
        self._take: Callable[[Any], bool] = lambda message: False
        self._has_ended = anyio.Event()
        self._requests: dict[RequestId, anyio.CancelScope] = {}
        self._notice: anyio.Event | None = None
        """The end of the newest notification's POST. Messages after it wait, so that none overtakes it."""
        self._unsent_bytes = 0

    # --- what the Peer sees -----------------------------------------------------------------------------------------

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        """See `peer.MessageSource`; returns when the conversation cannot go on."""
        self._take = take
        await self._has_ended.wait()

    def send(self, message: Json, headers: Mapping[str, str] | None = None) -> None:
        """See `peer.MessageSink`."""
        if self._has_ended.is_set():
            raise anyio.BrokenResourceError
        method, number = message.get("method"), message.get("id")
        body = to_json(message, inf_nan_mode="null")
        before, done = self._notice, None
        if method == "notifications/cancelled":
            self._tasks.start_soon(self._cancel, message["params"]["requestId"], body, dict(headers or {}))
            return
        if number is None:
            self._notice = done = anyio.Event()
        asked = number if method is not None else None
        if asked is not None:
            self._requests[asked] = anyio.CancelScope()
        else:
            self._unsent_bytes += len(body)
            if self._unsent_bytes > _MOST_UNSENT_BYTES:
                self._end(f"it does not read its messages: more than {_MOST_UNSENT_BYTES} bytes wait for it")
                raise anyio.BrokenResourceError
        self._tasks.start_soon(self._post, method, asked, body, headers or {}, before, done)

    async def wait_room(self) -> None:  # noqa: B027  # this is what both kinds do
        """There is always room."""

    def close(self) -> None:  # noqa: B027  # as above
        """The tasks end with the conversation."""

    def exit_info(self) -> ExitInfo:
        return ExitInfo(cause=self.failure)

    # --- one POST ---------------------------------------------------------------------------------------------------

    async def _post(
        self,
        method: str | None,
        number: RequestId | None,
        body: bytes,
        headers: Mapping[str, str],
        before: anyio.Event | None,
        done: anyio.Event | None,
    ) -> None:
        """Post a message. number: of a request, which gets its answer or an error whatever happens."""
        scope = self._requests[number] if number is not None else anyio.CancelScope()
        try:
            with scope:
                if before is not None:
                    await before.wait()
                await self._exchange(method, number, body, headers)
        except ConnectFailed as exc:
            reason = f"cannot connect to {self._client.address} ({exc}); is the server running?"
            self._lose(number, reason, LocalError.UNSENT)
            self._end(reason)
        except (ConnectionBroken, _Unacceptable) as exc:
            self._end(str(exc) if isinstance(exc, _Unacceptable) else f"{exc} ({self._client.address})")
        except ValueError as exc:
            self._fail(number, str(exc), INVALID_REQUEST)
        finally:
            if number is None:
                self._unsent_bytes -= len(body)
            elif self._requests.get(number) is scope:
                del self._requests[number]
            if done is not None:
                done.set()
                if self._notice is done:
                    self._notice = None

    @abstractmethod
    async def _exchange(self, method: str | None, number: RequestId | None, body: bytes, h: Mapping[str, str]) -> None:
        """Send one message and take what answers it."""

    async def _cancel(self, number: RequestId, body: bytes, headers: Mapping[str, str]) -> None:
        """Stop waiting for an answer."""
        if (scope := self._requests.get(number)) is not None:
            scope.cancel()

    async def _post_cancelled(self, body: bytes, headers: Mapping[str, str]) -> None:
        self._unsent_bytes += len(body)
        with anyio.move_on_after(_CANCEL_S):
            await self._post("notifications/cancelled", None, body, headers, None, None)

    async def end_session(self) -> None:  # noqa: B027  # only one kind has sessions
        """Tell the server that the conversation is over."""

    # --- what is read -----------------------------------------------------------------------------------------------

    async def _read(self, response: HttpResponse) -> bytes:
        """Return the whole body."""
        self._check_encoding(response)
        pieces, size = [], 0
        while piece := await response.receive():
            pieces.append(piece)
            size += len(piece)
            if size > self._limit:
                self._refuse_size()
        return b"".join(pieces)

    def _events(self, buffer: EventBuffer, piece: bytes) -> list[ServerEvent]:
        try:
            return buffer.feed(piece)
        except EventTooLarge:
            self._refuse_size()

    def _check_encoding(self, response: HttpResponse) -> None:
        if response.encoding:
            raise _Unacceptable(
                f"it sent an answer with content-encoding {response.encoding!r}, although the request said "
                "Accept-Encoding: identity"
            )

    def _refuse_size(self) -> NoReturn:
        raise _Unacceptable(f"it sent an answer of more than {self._limit} bytes (limits.max_result_bytes)")

    def _fail(self, number: RequestId | None, message: str, code: int, data: Any = None) -> None:
        """Answer a request that gets no answer from the server."""
        if number is not None:
            error = {"code": code, "message": message, **({"data": data} if data is not None else {})}
            self._take({"jsonrpc": "2.0", "id": number, "error": error})

    def _lose(self, number: RequestId | None, message: str, how: LocalError = LocalError.CLOSED) -> None:
        """End a request without its answer."""
        self._fail(number, message, CONNECTION_CLOSED, how)

    def _end(self, reason: str) -> None:
        """End the conversation. The requests that wait for answers get the error that it was closed."""
        self.failure = self.failure or reason
        self._has_ended.set()


class StreamableHttp(HttpTransport):
    """Streamable HTTP, of both generations. Only the older one has sessions, and a stream for what belongs to none."""

    def __init__(self, client: HttpClient, tasks: anyio.abc.TaskGroup, limit: int) -> None:
        super().__init__(client, tasks, limit)
        self._own: dict[str, str] = {}
        """The headers of the session."""

    def _headers(self, accepted: str = f"{_JSON}, {_EVENTS}", **more: str) -> dict[str, str]:
        return {"accept": accepted, **self._own, **more}

    async def _exchange(self, method: str | None, number: RequestId | None, body: bytes, h: Mapping[str, str]) -> None:
        headers = {**self._headers(), "content-type": _JSON, **{name.lower(): value for name, value in h.items()}}
        has_session = _SESSION in headers
        with await self._client.send("POST", headers, body) as response:
            if number is None:
                if response.status < 300:
                    await self._read(response)
                if method == "notifications/initialized" and has_session:
                    self._tasks.start_soon(self._listen)
                return
            if method == "initialize" and (session := response.headers.get(_SESSION)):
                self._own = {_SESSION: session}
            if response.status != 200 or response.media_type not in (_JSON, _EVENTS):
                await self._refused(number, response, has_session=has_session)
                return
            if response.media_type == _JSON:
                await self._take_answer(number, method, response)
                return
            position = _Position()
            if await self._take_events(response, position, number, method):
                response.close_soon()
                return
        await self._resume(position, number, method)

    async def _take_answer(self, number: RequestId, method: str | None, response: HttpResponse) -> None:
        try:
            message = await _decoded(await self._read(response))
        except ConnectionBroken:
            message = None
        if not self._taken(message, number, method):
            self._lose(number, "the answer cannot be read", LocalError.UNREADABLE)

    def _taken(self, message: Any, number: RequestId | None, method: str | None) -> bool:
        """Pass a message on; return False for what is not JSON-RPC. The answer to a request is known by its stream."""
        if isinstance(message, dict) and "method" not in message and number is not None:
            message["id"] = number
            result = message.get("result")
            if method == "initialize" and isinstance(result, dict):
                self._own[_VERSION] = str(result.get("protocolVersion"))
        return self._take(message)

    async def _refused(self, number: RequestId, response: HttpResponse, *, has_session: bool) -> None:
        """Turn a response that has no answer into an error, as its body says or as its status means."""
        status, where = response.status, self._client.address
        if response.location is not None:
            there = response.location.copy_with(query=None, fragment=None, userinfo=b"")
            told = f"HTTP {status} from {where}: a redirect to {there} is not followed; use that address if it is right"
            return self._fail(number, told, INVALID_REQUEST)
        if status < 300:
            told = f"HTTP {status} from {where}: unexpected content type {response.media_type!r}"
            return self._fail(number, told, INVALID_REQUEST)
        said = await self._error_in(response)
        overload = overload_in_http(status, response.headers.get("retry-after", ""))
        if overload is not None:
            when = f"; try again in {overload.retry_after:g} s" if overload.retry_after else ""
            own = said.get("data")
            data = own if isinstance(own, dict) else {} if own is None else {"data": own}
            code = said.get("code", INTERNAL_ERROR)
            message = said.get("message", f"HTTP {status} {response.reason}{when}")
            data = {"status": status, "retry_after": overload.retry_after, **data}
            return self._fail(number, message, code, data)
        message = said.get("message", f"HTTP {status} from {where}")
        code = said.get("code", METHOD_NOT_FOUND if status == 404 else INTERNAL_ERROR)
        if has_session and (
            (status == 404 and not (said and code == METHOD_NOT_FOUND))
            or (status == 400 and code in _ENDINGS and "session" in message.lower())
        ):
            # A restarted server does not know our session. It refused the request, so it did not execute it.
            self._lose(number, message, LocalError.UNSENT)
            self._end(f"the server no longer knows this session ({message})")
            return
        self._fail(number, message, code, said.get("data"))

    async def _error_in(self, response: HttpResponse) -> Json:
        """Return the JSON-RPC error in a body; {} if there is none."""
        if response.media_type != _JSON:
            return {}
        try:
            error = (await _decoded(await self._read(response)))["error"]
            return error if isinstance(error["code"], int) and isinstance(error["message"], str) else {}
        except (ConnectionBroken, LookupError, TypeError):
            return {}

    # --- streams ----------------------------------------------------------------------------------------------------

    async def _take_events(
        self, response: HttpResponse, position: _Position, number: RequestId | None = None, method: str | None = None
    ) -> bool:
        """Take the messages of a stream. Return True after the answer to request `number`, False at the end before."""
        self._check_encoding(response)
        buffer = EventBuffer(self._limit)
        try:
            while piece := await response.receive():
                for event in self._events(buffer, piece):
                    position.move(event)
                    if await self._take_event(event, number, method):
                        return True
        except ConnectionBroken:
            return False
        if number is not None:
            self.on_stream_end(number)
        return False

    async def _take_event(self, event: ServerEvent, number: RequestId | None, method: str | None) -> bool:
        """Take one message. Return whether it was the answer to request `number`."""
        if event.name != "message" or not event.data:  # a first event without data says where to resume
            return False
        message = await _decoded(event.data)
        if number is None or (isinstance(message, dict) and "method" in message):
            self._take(message)
            return False
        if not self._taken(message, number, method):
            self._lose(number, "the answer cannot be read", LocalError.UNREADABLE)
        return True

    async def _resume(self, position: _Position, number: RequestId, method: str | None) -> None:
        """Ask for the rest of a stream that ended before the answer."""
        if position.last_id is None:
            self._lose(number, "the stream of events ended without an answer")
            return
        attempts = 0
        while attempts < _RESUME_ATTEMPTS:
            await anyio.sleep(position.retry_ms / 1000)
            attempts += 1
            try:
                with await self._open_stream(position) as response:
                    if response.status == 200 and response.media_type == _EVENTS:
                        if await self._take_events(response, position, number, method):
                            return
                        attempts = 0
            except (ConnectFailed, ConnectionBroken):
                pass
        self._lose(number, "the stream of events ended without an answer, and could not be resumed")

    async def _listen(self) -> None:
        """Take what belongs to no request, as long as the server has a stream for it."""
        position, attempts = _Position(), 0
        try:
            while True:
                try:
                    with await self._open_stream(position) as response:
                        if response.location is not None:
                            return
                        if response.status == 200 and response.media_type == _EVENTS:
                            await self._take_events(response, position)
                            attempts = -1
                except (ConnectFailed, ConnectionBroken):
                    pass
                attempts += 1
                if attempts >= _RESUME_ATTEMPTS:
                    return
                await anyio.sleep(position.retry_ms / 1000)
        except _Unacceptable as exc:
            self._end(str(exc))

    async def _open_stream(self, position: _Position) -> HttpResponse:
        last = {"last-event-id": position.last_id} if position.last_id else {}
        return await self._client.send("GET", self._headers(_EVENTS, **{"cache-control": "no-store"}, **last))

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _cancel(self, number: RequestId, body: bytes, headers: Mapping[str, str]) -> None:
        """Cancel a request. Revision 2026-07-28 does so by closing the connection, the older ones by a notice."""
        await super()._cancel(number, body, headers)
        if self._own.get(_VERSION) in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._post_cancelled(body, headers)

    async def end_session(self) -> None:
        if _SESSION not in self._own or self._has_ended.is_set():
            return
        try:
            with await self._client.send("DELETE", self._headers()):
                pass
        except (ConnectFailed, ConnectionBroken) as exc:
            logger.debug("the session with %s could not be ended: %s", self._client.address, exc)


class LegacySse(HttpTransport):
    """The transport of revision 2024-11-05: one stream of events, and POSTs to the address that it names first."""

    def __init__(self, client: HttpClient, tasks: anyio.abc.TaskGroup, limit: int) -> None:
        super().__init__(client, tasks, limit)
        self._endpoint = client.url
        self._has_endpoint = anyio.Event()

    async def receive_loop(self, take: Callable[[Any], bool]) -> None:
        self._take = take
        async with anyio.create_task_group() as reading:
            reading.start_soon(self._receive)
            await self._has_ended.wait()
            reading.cancel_scope.cancel()

    async def _receive(self) -> None:
        where = self._client.address
        try:
            with await self._client.send("GET", {"accept": _EVENTS, "cache-control": "no-store"}) as response:
                if response.status != 200:
                    self._end(f"HTTP {response.status} from {where}")
                elif response.media_type != _EVENTS:
                    self._end(f"unexpected content type {response.media_type!r} from {where}")
                else:
                    await self._take_events(response)
        except ConnectFailed as exc:
            self._end(f"cannot connect to {where} ({exc}); is the server running?")
        except (ConnectionBroken, _Unacceptable) as exc:
            self._end(str(exc) if isinstance(exc, _Unacceptable) else f"{exc} ({where})")

    async def _take_events(self, response: HttpResponse) -> None:
        self._check_encoding(response)
        buffer = EventBuffer(self._limit)
        while piece := await response.receive():
            for event in self._events(buffer, piece):
                if event.name == "endpoint":
                    self._endpoint = self._within_origin(event.data.decode("utf-8", "replace"))
                    self._has_endpoint.set()
                elif event.name == "message" and event.data:
                    self._take(await _decoded(event.data))
        self._end(f"its stream of events ended ({self._client.address})")

    def _within_origin(self, named: str) -> httpx2.URL:
        """Return the address for messages. It gets the configured headers, so it must be one of the same server."""
        url = self._client.url
        try:
            endpoint = url.join(named)
        except httpx2.InvalidURL as exc:
            raise _Unacceptable(f"it named an address for messages that is none: {exc}") from exc
        if HttpOrigin.of(endpoint) != HttpOrigin.of(url):
            raise _Unacceptable(f"it named an address of another server, {endpoint.host!r}, for messages")
        return endpoint

    async def _exchange(self, method: str | None, number: RequestId | None, body: bytes, h: Mapping[str, str]) -> None:
        await self._has_endpoint.wait()
        headers = {"content-type": _JSON}
        with await self._client.send("POST", headers, body, url=self._endpoint) as response:
            await self._read(response)
            if response.status >= 300:
                self._fail(number, f"HTTP {response.status} from {self._client.address}", INTERNAL_ERROR)

    async def _cancel(self, number: RequestId, body: bytes, headers: Mapping[str, str]) -> None:
        await super()._cancel(number, body, headers)
        await self._post_cancelled(body, headers)


@dataclass
class _Position:
    """Where a stream is resumed, and when."""

    last_id: str | None = None
    retry_ms: int = _RESUME_MS

    def move(self, event: ServerEvent) -> None:
        if event.id:
            self.last_id = event.id
        if event.retry_ms is not None:
            self.retry_ms = event.retry_ms


class _Unacceptable(Exception):
    """What the server sent ends the conversation. The text completes "the server ended the connection"."""


async def _decoded(data: bytes) -> Any:
    """Return a JSON value; None, which is no message, when it is not JSON."""
    try:
        return await decode(data)
    except (ValueError, RecursionError):
        return None
