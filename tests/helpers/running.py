"""A call that goes on beside the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc

WAIT_TIMEOUT_S = 30.0


class Running:
    """Something that runs in a task of its own: `outcome` is its result or its error, None if it was cancelled."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, function: Callable[..., Awaitable[Any]], *args: Any, **keys: Any
    ) -> None:
        self.outcome: Any = None
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()
        tasks.start_soon(self._run, function, args, keys)

    async def _run(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], keys: dict[str, Any]) -> None:
        with self._scope:
            try:
                self.outcome = await function(*args, **keys)
            except Exception as exc:
                self.outcome = exc
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def cancel(self) -> None:
        self._scope.cancel()

    async def wait(self) -> Any:
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await self._done.wait()
        return self.outcome
