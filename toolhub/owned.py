"""`hold()`: run a context manager in an owner task of its own.

anyio's cancel scopes must be left by the task that entered them, and an MCP session is full of them. So whatever
must outlive its caller is entered *and* left by one owner task. The owner waits for *release or death*, never for
release alone: the commonest bug of session managers is an owner parked on a shutdown event while its child is dead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
import anyio.abc

T = TypeVar("T")


@dataclass(eq=False)
class Held(Generic[T]):
    """A resource whose context lives in an owner task. `error`: the exception that ended it, if one did."""

    value: T
    error: BaseException | None = None
    _release: anyio.Event = field(default_factory=anyio.Event)
    _closed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    @property
    def is_released(self) -> bool:
        """Whether its end was asked for."""
        return self._release.is_set()

    def release(self) -> None:
        """Ask the owner to leave the context; does not wait."""
        self._release.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def aclose(self) -> None:
        """Ask the owner to leave the context and wait until it has."""
        self._release.set()
        await self._closed.wait()


async def hold(
    owners: anyio.abc.TaskGroup,
    resource: AbstractAsyncContextManager[T],
    *,
    until: Callable[[T], Awaitable[object]] | None = None,
    name: str = "owner",
) -> Held[T]:
    """Enter `resource` in a new task of `owners` and return once it is entered.

    until: an awaitable per resource that returns when it is dead; the owner then leaves the context by itself.
    An error while entering is raised here, unwrapped from single-member exception groups. An error later is kept in
    `Held.error` and does not end `owners`. Cancelling this call cancels the entering.
    """
    start_error: list[Exception] = []

    async def own(*, task_status: anyio.abc.TaskStatus[Held[T] | None]) -> None:
        held: Held[T] | None = None
        try:
            async with resource as value:
                held = Held(value)
                task_status.started(held)
                await _release_or_death(held, until)
        except Exception as exc:
            if held is None:
                start_error.append(unwrapped(exc))
                task_status.started(None)
            else:
                held.error = unwrapped(exc)
        finally:
            if held is not None:
                held._closed.set()

    held: Held[T] | None = await owners.start(own, name=name)
    if held is None:
        raise start_error[0]
    return held


async def _release_or_death(held: Held[T], until: Callable[[T], Awaitable[object]] | None) -> None:
    if until is None:
        await held._release.wait()
        return
    death, waiting, watching = until, anyio.CancelScope(), anyio.CancelScope()

    async def watch() -> None:
        # A scope of its own: a task that its group cancels leaves a cycle of exception and frames (anyio 4.16), which
        # keeps all that the frames refer to until a garbage collection.
        with watching:
            await death(held.value)
            waiting.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        with waiting:
            await held._release.wait()
        watching.cancel()


def unwrapped(exc: BaseException) -> Exception:
    """Return the first exception inside nested exception groups."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc if isinstance(exc, Exception) else RuntimeError(repr(exc))
