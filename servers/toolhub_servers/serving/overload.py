"""How a tool tells the hub that a service it uses asks for fewer calls.

The answer of a tool is a text for a model. So the code that learns of the overload reports it here, in the task of the
tool call, and it goes into the `_meta` of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult, TextContent

from toolhub.overload import REFUSALS, OverloadSignal, overload_signal

if TYPE_CHECKING:  # all servers import this module, and not all need the HTTP client
    from toolhub_servers.web.errors import BadStatus

_told: ContextVar[list[OverloadSignal] | None] = ContextVar("toolhub_servers_pressure", default=None)


def overload_in(exc: BadStatus) -> OverloadSignal | None:
    """Return what a service's refusal says about its load."""
    return overload_signal(exc.retry_after) if exc.status in REFUSALS else None


def report_overload(pressure: OverloadSignal | None) -> None:
    """Mark the result of the running tool call; None marks nothing. Outside a tool call this does nothing."""
    told = _told.get()
    if told is not None and pressure is not None:
        told.append(pressure)


def reporting_overload(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the same tool; its text is marked if an overload was reported during the call. Other answers stay."""

    @functools.wraps(function)
    async def call(*args: Any, **arguments: Any) -> Any:
        told: list[OverloadSignal] = []
        before = _told.set(told)
        try:
            answer = await function(*args, **arguments)
        finally:
            _told.reset(before)
        if not told or not isinstance(answer, str):
            return answer
        longest = max(told, key=lambda pressure: pressure.retry_after or 0.0)
        return CallToolResult(content=[TextContent(type="text", text=answer)], _meta=longest.meta())

    return call
