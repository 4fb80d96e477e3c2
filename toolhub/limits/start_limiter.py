"""Bounds how many sessions start at once.

A start is mostly imports, so too many at once starve everything else of CPU.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from toolhub.limits.limiter import ConcurrencyLimiter
from toolhub.model import FairShareKey

# A start that takes longer than this waits for something rather than computes; it must not keep others from starting.
# On a loaded machine a Python server is up in 1-3 s.
START_HOLD_TIMEOUT_S = 5.0
# The queue needs no bound of its own: a slot starts once at a time, and the number of tasks is limited.
_QUEUE = 1 << 30


class StartLimiter:
    """Lets `limit` starts run at once, fairly between tasks.

    A start that takes long gives its place back and goes on.
    """

    def __init__(self, limit: int) -> None:
        self.limiter = ConcurrencyLimiter("the start of processes", limit, _QUEUE)

    @property
    def limit(self) -> int:
        return self.limiter.limit

    @property
    def in_use(self) -> int:
        return self.limiter.in_use

    def expected_wait(self, share_key: FairShareKey) -> float:
        """Estimate the seconds until a start requested now would begin; 0 while nothing is known."""
        return self.limiter.expected_wait(share_key) or 0.0

    @asynccontextmanager
    async def place(self, owners: anyio.abc.TaskGroup, share_key: FairShareKey | None = None) -> AsyncIterator[None]:
        """Wait for a place and hold it for the block, but at most START_HOLD_TIMEOUT_S.

        owners: the task group in which the timeout runs.
        """
        if not self.limiter.try_enter():
            await self.limiter.wait(share_key or FairShareKey(), math.inf)
        began = anyio.current_time()
        kept = True
        waiting = anyio.CancelScope()

        def give_back() -> None:
            nonlocal kept
            if kept:
                kept = False
                self.limiter.leave(anyio.current_time() - began)

        async def give_back_later() -> None:
            with waiting:
                await anyio.sleep(START_HOLD_TIMEOUT_S)
                give_back()

        try:
            owners.start_soon(give_back_later)
            yield
        finally:
            waiting.cancel()
            give_back()
