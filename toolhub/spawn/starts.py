"""How many sessions may be starting at once: starting is imports, that is CPU, and a storm of it starves everybody."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from toolhub.layers.admission import Gate
from toolhub.model import Claimant

# A start that takes longer is not computing but waiting, and a server that never answers must not keep the place of
# those that would. On a loaded machine a Python server is up in 1-3 s.
PATIENCE_S = 5.0
# Nothing else bounds the starts of one hub: slots start once at a time, and tasks are counted.
_QUEUE = 1 << 30


class StartLimiter:
    """Lets `limit` starts run at once, in turns between tasks; one that takes long gives its place back and goes on."""

    def __init__(self, limit: int) -> None:
        self.gate = Gate("the start of processes", limit, _QUEUE)

    @property
    def limit(self) -> int:
        return self.gate.limit

    @property
    def in_use(self) -> int:
        return self.gate.in_use

    def expected_wait(self, claimant: Claimant) -> float:
        """Seconds until a start that is asked for now would begin; 0 while nothing is known."""
        return self.gate.expected_wait(claimant) or 0.0

    @asynccontextmanager
    async def place(self, owners: anyio.abc.TaskGroup, claimant: Claimant | None = None) -> AsyncIterator[None]:
        """Wait for a place, and keep it for the block but at most PATIENCE_S. The clock runs in a task of `owners`."""
        if not self.gate.try_enter():
            await self.gate.wait(claimant or Claimant(), math.inf)
        began = anyio.current_time()
        kept = True
        waiting = anyio.CancelScope()

        def give_back() -> None:
            nonlocal kept
            if kept:
                kept = False
                self.gate.leave(anyio.current_time() - began)

        async def lose_patience() -> None:
            with waiting:
                await anyio.sleep(PATIENCE_S)
                give_back()

        try:
            owners.start_soon(lose_patience)
            yield
        finally:
            waiting.cancel()
            give_back()
