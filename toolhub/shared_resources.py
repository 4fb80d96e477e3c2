"""Resources that the servers of a hub share, such as an HTTP pool, a browser, or a cache.

Each resource has a key. The first server that asks for it opens it, in an owner task of the hub, and it is closed with
the hub. A server that runs without a hub opens its own `SharedResources`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.abc

from toolhub.owned import Held, hold

T = TypeVar("T")


class SharedResources:
    """Shared resources by key. `owners` is the task group that they live in."""

    def __init__(self, owners: anyio.abc.TaskGroup) -> None:
        self._owners = owners
        self._held: dict[str, Held[Any]] = {}
        self._opening: dict[str, anyio.Lock] = {}

    def __repr__(self) -> str:
        return f"<SharedResources {sorted(self._held)}>"

    async def get_or_open(self, key: str, resource: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the resource of that key. Open it if it is not open or has died. Raises what opening raises.

        Equal keys must mean equal resources: put a fingerprint of the settings into the key. Put no secret into it,
        because keys appear in statistics and messages. A resource with a method `statistics()` that returns a dataclass
        or a mapping is counted in the hub's metrics.
        """
        async with self._opening.setdefault(key, anyio.Lock()):
            held = self._held.get(key)
            if held is None or held.is_closed:
                held = self._held[key] = await hold(self._owners, resource(), name=f"resources {key}")
        value: T = held.value
        return value

    async def drop(self, key: str) -> None:
        """Close the resource of that key, if it is open. The next `get_or_open()` opens a new one."""
        held = self._held.pop(key, None)
        if held is not None:
            await held.aclose()

    def statistics(self) -> Mapping[str, Mapping[str, float]]:
        """Return the numbers that each open resource counts, by its key. Resources without numbers are left out."""
        counted = {key: _numbers(held.value) for key, held in sorted(self._held.items()) if not held.is_closed}
        return {key: numbers for key, numbers in counted.items() if numbers}

    async def aclose(self) -> None:
        """Close everything, the last opened first. Idempotent."""
        while self._held:
            _, held = self._held.popitem()
            await held.aclose()


def _numbers(thing: Any) -> Mapping[str, float]:
    statistics = getattr(thing, "statistics", None)
    if not callable(statistics):
        return {}
    counted: Any = statistics()
    values = counted if isinstance(counted, Mapping) else dataclasses.asdict(counted)
    return {str(name): value for name, value in values.items() if isinstance(value, int | float)}


@asynccontextmanager
async def open_shared_resources() -> AsyncIterator[SharedResources]:
    """Hold shared resources. Leaving the block closes them."""
    async with anyio.create_task_group() as owners:
        resources = SharedResources(owners)
        try:
            yield resources
        finally:
            with anyio.CancelScope(shield=True):
                await resources.aclose()
            owners.cancel_scope.cancel()
