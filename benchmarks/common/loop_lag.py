"""How late an event loop wakes: a coroutine sleeps for a short time, again and again, and notes the excess.

As a builtin server (`benchmarks.common.loop_lag:create_server`) it does so in the loop of the hub that runs it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

# Often enough to see a burst of 50 ms. Rarely enough to cost the loop less than 1 % of its time.
_TICK_S = 0.005


class LoopLag:
    def __init__(self) -> None:
        self._lags_ms: list[float] = []

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await anyio.sleep(_TICK_S)
            self._lags_ms.append(max(0.0, time.perf_counter() - began - _TICK_S) * 1e3)

    def take(self) -> list[float]:
        """What was noted since the last time."""
        taken, self._lags_ms = self._lags_ms, []
        return taken


@asynccontextmanager
async def open_loop_lag() -> AsyncIterator[LoopLag]:
    ticks = LoopLag()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticks.run)
        try:
            yield ticks
        finally:
            tasks.cancel_scope.cancel()


def create_server() -> Any:
    """Return a server whose tool `take` tells the lags since the last time, in milliseconds."""
    from mcp.server import MCPServer  # a worker that only measures the lag may run without it

    current: list[LoopLag] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with open_loop_lag() as ticks:
            current.append(ticks)
            yield

    server = MCPServer("ticks", log_level="WARNING", lifespan=lifespan)

    @server.tool(structured_output=False)
    async def take() -> str:
        """Tells how late the loop woke."""
        return json.dumps(current[-1].take())

    return server
