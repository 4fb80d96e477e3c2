"""Single-flight: what several callers want at the same time is done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Execution(Generic[V]):
    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.waiters = 0
        self.results: list[V] = []
        """Empty if it failed or was cancelled."""


class SingleFlight(Generic[K, V]):
    """One execution per key at a time. Callers that come meanwhile wait for it and get the same result.

    The first caller leads: it executes the work in its own task. Its error or cancellation is its alone; the next
    waiting caller then leads. Waiting callers keep their own deadlines and can be cancelled.

    copy: makes the copy of a result that each waiting caller gets, so that no caller can change another's.
    """

    def __init__(self, *, copy: Callable[[V], V] = lambda result: result) -> None:
        self.executions = 0
        self.joined = 0
        """How often a caller waited for an execution instead of leading one."""
        self._copy = copy
        self._running: dict[K, _Execution[V]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __repr__(self) -> str:
        return f"<SingleFlight running={len(self._running)} executions={self.executions} joined={self.joined}>"

    async def run(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        """Return the result of `work`, or of the execution for `key` that is running already.

        Raises what `work` raises.
        """
        while (execution := self._running.get(key)) is not None:
            self.joined += 1
            execution.waiters += 1
            try:
                await execution.ended.wait()
            finally:
                execution.waiters -= 1
            await anyio.lowlevel.checkpoint_if_cancelled()  # a cancelled caller must not begin to lead
            if execution.results:
                return self._copy(execution.results[0])
        self.executions += 1
        execution = self._running[key] = _Execution()
        try:
            result = await work()
            if execution.waiters:
                execution.results.append(self._copy(result))  # the leader may change its own as soon as it has it
            return result
        finally:
            del self._running[key]
            execution.ended.set()
