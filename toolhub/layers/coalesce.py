"""Executes equal calls that are in flight at the same time once. All of their callers get the answer.

The first caller leads and makes the call. If it fails, is cancelled, or its task is closed, the other callers do not
fail with it: the next one makes the call again. So coalescing is only for tools that are declared safe to repeat.
Progress and logs reach the leader only.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from toolhub.layers import Handler, Layer
from toolhub.layers.cache_key import CacheTarget, coalesce_scope, key_of, may_write
from toolhub.layers.clone import clone_json
from toolhub.model import Call, CoalesceStatistics, Result
from toolhub.single_flight import SingleFlight


class Coalescer:
    """The calls of one hub that other calls may join."""

    def __init__(self) -> None:
        self._flights: SingleFlight[str, Result] = SingleFlight(copy=lambda result: Result(clone_json(result.raw)))
        self._leaders: dict[str, Call] = {}

    def __repr__(self) -> str:
        return f"<Coalescer {self._flights}>"

    async def run(self, key: str, call: Call, work: Handler) -> Result:
        """Make the call, or wait for the equal one that is being made."""

        async def lead() -> Result:
            self._leaders[key] = call
            try:
                return await work(call)
            finally:
                del self._leaders[key]

        try:
            return await self._flights.run(key, lead)
        finally:
            leader = self._leaders.get(key)
            if leader is not None:  # this caller stops waiting; what the leader has sent was sent for it too
                call.delivery.absorb(leader.delivery)

    def statistics(self) -> CoalesceStatistics:
        flights = self._flights
        return CoalesceStatistics(executions=flights.executions, coalesced=flights.joined, in_flight=len(flights))


def coalesce(coalescer: Coalescer, target_of: Callable[[Call], CacheTarget]) -> Layer:
    """Make equal calls once, where the tool is declared safe to repeat and the server's `coalesce` allows it."""

    def layer(inner: Handler) -> Handler:
        def handle(call: Call) -> Coroutine[Any, Any, Result]:
            target = target_of(call)
            scope = coalesce_scope(target.spec, call.policy)
            key = None if scope == "off" else key_of(call, target, scope, call.task_id if scope == "task" else "")
            return work(call) if key is None else coalescer.run(key, call, work)

        def work(call: Call) -> Coroutine[Any, Any, Result]:
            target = target_of(call)
            return write(call, target) if may_write(call, target) else inner(call)

        async def write(call: Call, target: CacheTarget) -> Result:
            try:
                return await inner(call)
            finally:
                target.writes += 1

        return handle

    return layer
