"""Counts every call, times it, and opens one span for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from opentelemetry import trace as otel

from toolhub.layers import Handler, Layer
from toolhub.model import Call, Result

logger = logging.getLogger("toolhub.calls")
_tracer = otel.get_tracer("toolhub")


class Observer(Protocol):
    """Is notified of every call. It must neither block nor raise."""

    def began(self, call: Call) -> None: ...

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        """outcome: `ok`, `tool_error`, `cancelled` or the error class's name."""


@dataclass(eq=False)
class CallCounts:
    """How many calls there were, and how they ended."""

    calls: int = 0
    errors: int = 0
    in_flight: int = 0
    shared_results: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        self.calls += 1
        self.in_flight += 1

    def end(self, outcome: str) -> None:
        self.in_flight -= 1
        self.errors += outcome not in ("ok", "tool_error")
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def _notify(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        logger.exception("an observer of calls raised")  # an observer's error must not fail the call


def _in_span(inner: Handler) -> Handler:
    """Open an OpenTelemetry span around the call. Without a configured tracer this costs almost nothing."""

    def handle(call: Call) -> Coroutine[Any, Any, Result]:
        attributes = {"toolhub.server": call.server, "toolhub.tool": call.tool}
        if call.early is not None:
            attributes["toolhub.early"] = call.early
        span = _tracer.start_span("toolhub.call", attributes=attributes)
        return inner(call) if span is otel.INVALID_SPAN else spanned(call, span)

    async def spanned(call: Call, span: otel.Span) -> Result:
        with otel.use_span(span, end_on_exit=True, record_exception=False):
            try:
                return await inner(call)
            finally:
                if call.delivery.speculated:
                    span.set_attribute("toolhub.speculated", True)

    return handle


def trace(*counts: CallCounts, observers: list[Observer]) -> Layer:
    """Count every call in each of `counts`, and notify `observers`. Observers may be added later."""

    def layer(inner: Handler) -> Handler:
        traced = _in_span(inner)

        async def handle(call: Call) -> Result:
            began = time.perf_counter()  # uvloop's own clock ticks in milliseconds
            for count in counts:
                count.begin()
            for observer in observers:
                _notify(observer.began, call)
            outcome = "cancelled"
            try:
                result = await traced(call)
                outcome = "tool_error" if result.is_error else "ok"
                return result
            except Exception as exc:
                outcome = type(exc).__name__
                raise
            finally:
                seconds = time.perf_counter() - began
                for count in counts:
                    count.end(outcome)
                for observer in observers:
                    _notify(observer.ended, call, outcome, seconds)
                if logger.isEnabledFor(logging.DEBUG):
                    logger.debug("%s %s/%s %s %.1f ms", call.id, call.server, call.tool, outcome, seconds * 1e3)

        return handle

    return layer
