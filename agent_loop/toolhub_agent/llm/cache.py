"""Two small helpers: work that many callers want is done once (`SingleFlight`), and a bounded memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.result: list[V] = []
        """Empty: it failed or was cancelled."""


class SingleFlight(Generic[K, V]):
    """One piece of work per key at a time; those who come meanwhile get the same result.

    Whoever does the work may fail or be cancelled, and alone learns of that; the next who waits then does it.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    def __repr__(self) -> str:
        return f"<SingleFlight {len(self._flights)} under way>"

    async def run(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        while (flight := self._flights.get(key)) is not None:
            await flight.ended.wait()
            if flight.result:
                return flight.result[0]
        flight = self._flights[key] = _Flight()
        try:
            result = await work()
            flight.result.append(result)
            return result
        finally:
            del self._flights[key]
            flight.ended.set()
