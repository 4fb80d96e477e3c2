"""What a tool tells the hub beside its answer: that a service it lives on wants fewer calls.

The answer is a sentence for a model, and made in many places. So whoever learns of it says it here, in the task of the
tool call, and it goes into the result's `_meta`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mcp.types import CallToolResult, TextContent

from toolhub.overload import REFUSALS, OverloadSignal, overload_signal

if TYPE_CHECKING:  # every server's tools come by here; the HTTP client is not for all of them
    from toolhub_servers.web.errors import BadStatus

_told: ContextVar[list[OverloadSignal] | None] = ContextVar("toolhub_servers_pressure", default=None)


def overload_in(exc: BadStatus) -> OverloadSignal | None:
    """What a service's refusal says about its load."""
    return overload_signal(exc.retry_after) if exc.status in REFUSALS else None


def report_overload(pressure: OverloadSignal | None) -> None:
    """Mark the result of the tool call that is being made; None marks nothing. Outside of one nobody is told."""
    told = _told.get()
    if told is not None and pressure is not None:
        told.append(pressure)


def reporting_overload(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same tool, its text marked if pressure was told while it was made. Other answers stay as they are."""

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
