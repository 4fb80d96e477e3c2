"""Conversations over HTTP: streamable HTTP, and the legacy SSE transport.

A connection error cancels the task that hosts the SDK's transport. That task is the session's own owner, so it costs
nobody else anything; its last exception tells what happened.

An answer has a largest size. The SDK reads a JSON answer to its end and bounds only events, so `_Bounded` counts what
arrives: all of a body, or each event of a stream. What arrives is what is kept, because answers that are compressed are
not accepted: a few kilobytes of them may stand for any number of bytes.
"""

from __future__ import annotations

import functools
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn, cast

import anyio
import httpx2
from mcp import MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST

from toolhub.channel.base import ExitInfo, OpenFailed
from toolhub.channel.mcp import McpChannel, RelayDispatcher, conversation, open_reason
from toolhub.config import ServerSpec
from toolhub.model import OWN_PROFILE, ClientProfile, Json
from toolhub.overload import OverloadSignal, overload_in_http
from toolhub.owned import unwrapped

# Cleaning up a conversation (DELETE of the session) must not hold up a task's end.
_HTTP_CLOSE_S = 2.0
# With these a conversation is over; a server that is only busy uses them for anything.
_ENDINGS = frozenset({CONNECTION_CLOSED, INVALID_REQUEST})

# A blank line ends an event; lines end with LF, CR LF or CR.
_EVENT_END = re.compile(rb"\n\r?\n|\r\r")

ResponseHook = Callable[[httpx2.Response], Awaitable[None]]


@asynccontextmanager
async def open_http(spec: ServerSpec, profile: ClientProfile = OWN_PROFILE, *, limit: int) -> AsyncIterator[McpChannel]:
    """Connect to a streamable HTTP or legacy SSE server. Raises OpenFailed.

    limit: bytes of the largest answer.
    """
    death = ExitInfo()
    statuses: list[int] = []
    opened: list[McpChannel] = []

    async def end(reason: _Unacceptable) -> None:
        raise reason

    def refuse(reason: _Unacceptable) -> None:
        death.cause = str(reason)
        guard.start_soon(end, reason)  # the SDK takes some errors of a body for the end of one request

    async def note(response: httpx2.Response) -> None:
        statuses[:] = [response.status_code]
        _bind(response, limit, is_legacy=spec.transport == "sse", refuse=refuse, ended_early=ended_early)

    def ended_early(request: httpx2.Request) -> None:
        for channel in opened:
            channel.stream_closed(json.loads(request.content)["id"])

    try:
        async with anyio.create_task_group() as guard:
            async with _http_transport(spec, note) as streams:
                async with conversation(spec, RelayDispatcher(*streams), lambda: death, profile) as channel:
                    opened.append(channel)
                    yield channel
                guard.start_soon(_cancel_later, guard.cancel_scope)  # the transport now sends DELETE
            guard.cancel_scope.cancel()
    except Exception as exc:
        death.cause = _http_reason(exc, httpx2.URL(spec.url or ""), statuses)
        death.unsent = isinstance(unwrapped(exc), httpx2.ConnectError)
        if not opened:
            raise OpenFailed(death.cause) from exc
        raise unwrapped(exc) from exc


async def _cancel_later(scope: anyio.CancelScope) -> None:
    await anyio.sleep(_HTTP_CLOSE_S)
    scope.cancel()


@asynccontextmanager
async def _http_transport(spec: ServerSpec, note: ResponseHook) -> AsyncIterator[tuple[Any, Any]]:
    """Give the stream pair. note: is shown every answer before its body is read; the SDK keeps them to itself."""
    hooks: dict[str, list[Any]] = {"response": [note]}
    accepted = httpx2.Headers(dict(spec.headers))
    accepted["Accept-Encoding"] = "identity"  # the only one, also if the config names others
    headers = dict(accepted)
    if spec.transport == "sse":

        def make_client(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            return httpx2.AsyncClient(
                headers=headers, timeout=timeout, auth=auth, event_hooks=hooks, verify=tls_context()
            )

        legacy = sse_client(
            spec.url or "",
            headers=headers,
            timeout=spec.start_timeout_s,
            sse_read_timeout=86400.0,
            httpx_client_factory=make_client,
        )
        async with cast(AbstractAsyncContextManager[tuple[Any, Any]], legacy) as streams:
            yield streams
        return
    # Reads wait as long as a call may take; the call's own deadline ends them. Connecting does not.
    timeout = httpx2.Timeout(spec.start_timeout_s, read=None, pool=None)
    async with _Client(headers=headers, timeout=timeout, event_hooks=hooks, verify=tls_context()) as client:
        async with streamable_http_client(spec.url or "", http_client=client, max_sse_event_size=None) as streams:
            yield streams


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The one of all sessions: loading the certificate authorities takes 20 ms and 600 KiB each time."""
    return httpx2.create_ssl_context()


class _Unacceptable(Exception):
    """The body of an answer is too large, or compressed. The text completes "the server ended the connection"."""


def _bind(
    response: httpx2.Response,
    limit: int,
    *,
    is_legacy: bool,
    refuse: Callable[[_Unacceptable], None],
    ended_early: Callable[[httpx2.Request], None],
) -> None:
    """Bound what may be read of an answer's body.

    ended_early: called when a stream of events has ended without the answer. The SDK stops reading after the answer, so
    a stream that is read to its end has none. Servers close streams so that clients resume them later (SEP-1699).

    is_legacy: over legacy SSE only the answer to GET is a stream of events, whatever others call themselves: the SDK
    reads those to their end.
    """
    is_events = (
        response.status_code == 200
        and response.headers.get("content-type", "").lower().startswith("text/event-stream")
        and not (is_legacy and response.request.method != "GET")
    )
    if is_events:
        response.encoding = "utf-8"  # as the SSE specification requires
    is_answer = (
        response.request.method == "POST"
        and response.is_success
        and response.headers.get("content-type", "").lower().startswith("application/json")
    )
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    response.stream = _Bounded(response.stream, limit, is_events, encoding, refuse, may_be_cut=is_answer)
    if is_events and response.request.method == "POST" and not is_legacy:
        response.stream.on_end = functools.partial(ended_early, response.request)


class _Bounded(httpx2.AsyncByteStream):
    """A body that may have `limit` bytes, or so many in each of its events. Reading more raises _Unacceptable."""

    def __init__(
        self,
        body: httpx2.AsyncByteStream,
        limit: int,
        is_events: bool,
        encoding: str,
        refuse: Callable[[_Unacceptable], None],
        *,
        may_be_cut: bool,
    ) -> None:
        """may_be_cut: a connection that breaks ends the body, and is no error."""
        self._body = body
        self._limit = limit
        self._is_events = is_events
        self._encoding = encoding
        self._refuse = refuse
        self._may_be_cut = may_be_cut
        self.on_end: Callable[[], None] = lambda: None
        """Called when the body was read to its end."""
        self._size = 0
        self._tail = b""
        """The last bytes of an event that goes on: its end may come in two chunks."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._encoding not in ("", "identity"):
            self._stop(
                f"it sent an answer with content-encoding {self._encoding!r}, although the request said "
                "Accept-Encoding: identity"
            )
        try:
            async for chunk in self._body:
                if self._added(chunk) > self._limit:
                    self._stop(f"it sent an answer of more than {self._limit} bytes (limits.max_result_bytes)")
                yield chunk
            self.on_end()
        except httpx2.TransportError:
            # The SDK tells half an answer to the caller of that request alone. An error here would end the session, and
            # with it every other call in flight.
            if not self._may_be_cut:
                raise

    def _added(self, chunk: bytes) -> int:
        """Count a chunk; return the size of the body so far, or of the largest event that has a part in the chunk."""
        if not self._is_events or (b"\n" not in chunk and b"\r" not in chunk):
            self._size += len(chunk)
            self._tail = b""
            return self._size
        first, *others = _EVENT_END.split(self._tail + chunk)
        largest = max(self._size - len(self._tail) + len(first), *map(len, others), 0)
        self._size = len(others[-1]) if others else largest
        self._tail = (others[-1] if others else first)[-2:]
        return largest

    def _stop(self, reason: str) -> NoReturn:
        refused = _Unacceptable(reason)
        self._refuse(refused)
        raise refused

    async def aclose(self) -> None:
        await self._body.aclose()


class _Client(httpx2.AsyncClient):
    """Turns a refusal (429, 503) into a JSON-RPC error in the body, because the SDK drops the status and headers."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **options)
        overload = overload_in_http(response.status_code, response.headers.get("retry-after", ""))
        if overload is None or request.method != "POST":
            return response
        error = _refused(response.status_code, response.reason_phrase, overload, await _error_in(response))
        body = {"jsonrpc": "2.0", "id": None, "error": error}
        return httpx2.Response(response.status_code, json=body, request=request)


async def _error_in(response: httpx2.Response) -> Json:
    """The JSON-RPC error that the server sent by itself, if it did."""
    try:
        if not response.headers.get("content-type", "").lower().startswith("application/json"):
            return {}
        error = json.loads(await response.aread())["error"]
        return error if isinstance(error["code"], int) and isinstance(error["message"], str) else {}
    except (httpx2.HTTPError, ValueError, LookupError, TypeError):
        return {}
    finally:
        await response.aclose()


def _refused(status: int, phrase: str, overload: OverloadSignal, body: Json) -> Json:
    """Return the error for a refused request. body: the server's own error; {} if it sent none."""
    seconds = overload.retry_after
    when = f"; try again in {seconds:g} s" if seconds else ""
    own = body.get("data")
    data = own if isinstance(own, dict) else {} if own is None else {"data": own}
    code = body.get("code", INTERNAL_ERROR)
    return {
        "code": INTERNAL_ERROR if code in _ENDINGS else code,
        "message": body.get("message", f"HTTP {status} {phrase}{when}"),
        "data": {"status": status, "retry_after": seconds, **data},
    }


def _http_reason(exc: BaseException, url: httpx2.URL, statuses: list[int]) -> str:
    """Say what happened at which address; a query or a user in it may be a secret."""
    cause, address = unwrapped(exc), url.copy_with(query=None, fragment=None, userinfo=b"")
    if isinstance(cause, _Unacceptable):
        return str(cause)
    if isinstance(cause, httpx2.HTTPStatusError):
        return f"HTTP {cause.response.status_code} from {address}"
    if isinstance(cause, MCPError) and statuses and statuses[-1] >= 400:
        return f"HTTP {statuses[-1]} from {address} ({cause.message})"
    if isinstance(cause, httpx2.ConnectError):
        return f"cannot connect to {address} ({cause}); is the server running?"
    return f"{open_reason(cause)} ({address})"
