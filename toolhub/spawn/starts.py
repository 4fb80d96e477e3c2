"""How many sessions may be starting at once: starting is imports, that is CPU, and a storm of it starves everybody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

# A start that takes longer is not computing but waiting, and a server that never answers must not keep the place of
# those that would. On a loaded machine a Python server is up in 1-3 s.
PATIENCE_S = 5.0


class StartLimiter:
    """Lets `limit` starts run at once; one that takes long gives its place back and goes on without."""

    def __init__(self, limit: int) -> None:
        self._places = anyio.CapacityLimiter(limit)

    @property
    def limit(self) -> int:
        return int(self._places.total_tokens)

    @property
    def in_use(self) -> int:
        return self._places.borrowed_tokens

    @asynccontextmanager
    async def place(self, owners: anyio.abc.TaskGroup) -> AsyncIterator[None]:
        """Wait for a place, and keep it for the block but at most PATIENCE_S. The clock runs in a task of `owners`."""
        holder = object()
        waiting = anyio.CancelScope()
        kept = False

        def give_back() -> None:
            nonlocal kept
            if kept:
                kept = False
                self._places.release_on_behalf_of(holder)

        async def lose_patience() -> None:
            with waiting:
                await anyio.sleep(PATIENCE_S)
                give_back()

        await self._places.acquire_on_behalf_of(holder)
        kept = True
        try:
            owners.start_soon(lose_patience)
            yield
        finally:
            waiting.cancel()
            give_back()
