"""Conversations over HTTP: streamable HTTP, and the legacy SSE transport.

A connection error cancels the task that hosts the SDK's transport. That task is the session's own owner, so it costs
nobody else anything; its last exception tells what happened.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import anyio
import httpx2
import mcp.client.sse
from mcp import MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST

from toolhub.channel.base import OpenFailed, PostMortem
from toolhub.channel.mcp import McpChannel, RelayDispatcher, conversation, open_reason
from toolhub.config import ServerSpec
from toolhub.model import Json
from toolhub.owned import unwrapped
from toolhub.pressure import Pressure, pressure_of_http

# Cleaning up a conversation (DELETE of the session) must not hold up a task's end.
_HTTP_CLOSE_S = 2.0
# With these a conversation is over; a server that is only busy uses them for anything.
_ENDINGS = frozenset({CONNECTION_CLOSED, INVALID_REQUEST})

# The SDK's SSE transport caps one event, that is one answer, at 1 MiB and (2.3) has no parameter for it.
setattr(  # noqa: B010  # the name is not exported, so an assignment would not type-check
    mcp.client.sse,
    "sse_within_origin",
    functools.partial(getattr(mcp.client.sse, "sse_within_origin"), max_event_size=None),  # noqa: B009
)


@asynccontextmanager
async def open_http(spec: ServerSpec, *, limit: int) -> AsyncIterator[McpChannel]:
    """Connect to a streamable HTTP or legacy SSE server. Raises OpenFailed.

    limit: bytes of the largest SSE event, that is of one answer.
    """
    death = PostMortem()
    statuses: list[int] = []
    opened = False
    try:
        async with anyio.create_task_group() as guard:
            async with _http_transport(spec, limit, statuses) as streams:
                async with conversation(spec, RelayDispatcher(*streams), lambda: death) as channel:
                    opened = True
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
async def _http_transport(spec: ServerSpec, limit: int, statuses: list[int]) -> AsyncIterator[tuple[Any, Any]]:
    """Give the stream pair. statuses: gets the HTTP status of every answer; the SDK keeps it to itself."""

    async def note(response: httpx2.Response) -> None:
        statuses[:] = [response.status_code]

    # Reads wait as long as a call may take; the call's own deadline ends them. Connecting does not.
    timeout = httpx2.Timeout(spec.start_timeout_s, read=None, pool=None)
    if spec.transport == "sse":
        legacy = sse_client(
            spec.url or "", headers=dict(spec.headers), timeout=spec.start_timeout_s, sse_read_timeout=86400.0
        )
        async with cast(AbstractAsyncContextManager[tuple[Any, Any]], legacy) as streams:
            yield streams
        return
    hooks: dict[str, list[Any]] = {"response": [note]}
    async with _Client(headers=dict(spec.headers), timeout=timeout, event_hooks=hooks) as client:
        async with streamable_http_client(spec.url or "", http_client=client, max_sse_event_size=limit) as streams:
            yield streams


class _Client(httpx2.AsyncClient):
    """Puts what "too many requests" says where the SDK does not drop it: a JSON-RPC error in the answer's body."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **options)
        pressure = pressure_of_http(response.status_code, response.headers.get("retry-after", ""))
        if pressure is None or request.method != "POST":
            return response
        error = _refused(response.status_code, response.reason_phrase, pressure, await _error_in(response))
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


def _refused(status: int, phrase: str, pressure: Pressure, said: Json) -> Json:
    """The error for a refused request, with what the server `said` about it where that is anything."""
    seconds = pressure.retry_after
    when = f"; try again in {seconds:g} s" if seconds else ""
    own = said.get("data")
    data = own if isinstance(own, dict) else {} if own is None else {"data": own}
    code = said.get("code", INTERNAL_ERROR)
    return {
        "code": INTERNAL_ERROR if code in _ENDINGS else code,
        "message": said.get("message", f"HTTP {status} {phrase}{when}"),
        "data": {"status": status, "retry_after": seconds, **data},
    }


def _http_reason(exc: BaseException, url: httpx2.URL, statuses: list[int]) -> str:
    """Say what happened at which address; a query or a user in it may be a secret."""
    cause, address = unwrapped(exc), url.copy_with(query=None, fragment=None, userinfo=b"")
    if isinstance(cause, httpx2.HTTPStatusError):
        return f"HTTP {cause.response.status_code} from {address}"
    if isinstance(cause, MCPError) and statuses and statuses[-1] >= 400:
        return f"HTTP {statuses[-1]} from {address} ({cause.message})"
    if isinstance(cause, httpx2.ConnectError):
        return f"cannot connect to {address} ({cause}); is the server running?"
    return f"{open_reason(cause)} ({address})"
