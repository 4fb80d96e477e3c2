"""Conversations over HTTP: streamable HTTP, and the legacy SSE transport.

A connection error cancels the task that hosts the SDK's transport. That task is the session's own owner, so it costs
nobody else anything; its last exception tells what happened.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import anyio
import httpx2
import mcp.client.sse
from mcp import MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from toolhub.channel.base import OpenFailed, PostMortem
from toolhub.channel.mcp import McpChannel, conversation, open_reason
from toolhub.config import ServerSpec
from toolhub.owned import unwrapped

# Cleaning up a conversation (DELETE of the session) must not hold up a task's end.
_HTTP_CLOSE_S = 2.0

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
                async with conversation(spec, streams, lambda: death) as channel:
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
    async with httpx2.AsyncClient(headers=dict(spec.headers), timeout=timeout, event_hooks=hooks) as client:
        async with streamable_http_client(spec.url or "", http_client=client, max_sse_event_size=limit) as streams:
            yield streams


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
