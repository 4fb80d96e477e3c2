"""Limits how many calls run at once. Queues are bounded: a call that does not fit is refused at once.

A call takes a place at each of its limiters, always in the same order (task, session, server, hub). So two calls cannot
wait for each other. Waiting calls are admitted fairly between runs, and within a run between its tasks. When a queue is
full, the newest call of the task that queued most makes room for a call of a task that queued less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio

from toolhub.layers import Handler, Layer
from toolhub.limits.limiter import ConcurrencyLimiter, WaitStats
from toolhub.model import Call, Result
from toolhub.overload import overload_in

if TYPE_CHECKING:
    from toolhub.limits.adaptive import AdaptiveLimit


def admission(limiters_of: Callable[[Call], Sequence[ConcurrencyLimiter]], counts: WaitStats | None = None) -> Layer:
    """Take a place at each limiter that `limiters_of` returns, in its order. Adaptive ones learn how the call went.

    counts: counts the waiting at all of these limiters together.
    """
    waits = counts or WaitStats()

    def layer(inner: Handler) -> Handler:
        async def handle(call: Call) -> Result:
            limiters = limiters_of(call)
            entered = 0
            began: float | None = None
            try:
                for limiter in limiters:
                    if not limiter.try_enter():
                        await _wait(limiter, call, waits)
                    entered += 1
                began = anyio.current_time()
                result = await inner(call)
            except BaseException:
                _leave(limiters[:entered], call, began, None)
                raise
            _leave(limiters, call, began, result)
            return result

        return handle

    return layer


async def _wait(limiter: ConcurrencyLimiter, call: Call, waits: WaitStats) -> None:
    began = anyio.current_time()
    waits.waiting += 1
    try:
        await limiter.wait(call.share_key, call.deadline)
    finally:
        waits.waiting -= 1
        waits.seconds += anyio.current_time() - began


def _leave(limiters: Sequence[ConcurrencyLimiter], call: Call, began: float | None, result: Result | None) -> None:
    now = anyio.current_time()
    for limiter in reversed(limiters):
        if limiter.adaptive is not None and began is not None:
            _learn(limiter, limiter.adaptive, call, result, now)
        limiter.leave(now - began if began is not None else None)


def _learn(limiter: ConcurrencyLimiter, limit: AdaptiveLimit, call: Call, result: Result | None, now: float) -> None:
    """Tell an adaptive limiter how a call ended. The time before the call was sent says nothing about the server."""
    sent_at = call.delivery.sent_at
    if sent_at is None:
        return
    if result is None:
        if now >= call.deadline:
            limit.failed(call.tool, now - sent_at, limiter.in_use, now)
        return
    overload = overload_in(result.raw)
    if overload is not None:
        limiter.slow_down(overload.retry_after)
    elif not result.is_error:
        limit.observe(call.tool, now - sent_at, limiter.in_use, now)
