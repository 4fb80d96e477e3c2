"""Futures and reader callbacks: asyncio's own on asyncio, otherwise anyio's.

Waking a task is most of a call's cost, and asyncio's own futures do it fastest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")


class Future(Protocol[T]):
    """One value that one task awaits."""

    def done(self) -> bool:
        """Whether it can no longer be set: it is set already or, on asyncio, its waiter was cancelled."""
        ...

    def set_result(self, value: T, /) -> None: ...

    def __await__(self) -> Generator[Any, None, T]: ...


class _EventFuture(Generic[T]):
    def __init__(self) -> None:
        self._is_set = anyio.Event()
        self._value: T

    def done(self) -> bool:
        return self._is_set.is_set()

    def set_result(self, value: T, /) -> None:
        self._value = value
        self._is_set.set()

    def __await__(self) -> Generator[Any, None, T]:
        yield from self._is_set.wait().__await__()
        return self._value


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def future_factory() -> Callable[[], Future[Any]]:
    """Return what makes a `Future` on the event loop that runs."""
    loop = _asyncio_loop()
    return loop.create_future if loop is not None else _EventFuture


@asynccontextmanager
async def readable(fd: int, callback: Callable[[], bool]) -> AsyncIterator[None]:
    """Call `callback` now and whenever `fd` can be read, and again in the next round of the loop if it returned True.

    It must not raise, because its exceptions reach no caller.
    """
    loop = _asyncio_loop()
    if loop is None:
        async with anyio.create_task_group() as watching:
            watching.start_soon(_watch, fd, callback)
            yield
            watching.cancel_scope.cancel()
        return
    reading = _ReaderCallback(loop, callback)
    loop.add_reader(fd, reading.begin)
    try:
        reading.begin()
        yield
    finally:
        loop.remove_reader(fd)
        reading.is_stopped = True


async def _watch(fd: int, callback: Callable[[], bool]) -> None:
    while True:
        while callback():
            await anyio.lowlevel.checkpoint()
        await anyio.wait_readable(fd)


class _ReaderCallback:
    """Calls the callback at most once per round of the loop, also while the descriptor stays readable."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], bool]) -> None:
        self._loop = loop
        self._callback = callback
        self._is_due = False
        self.is_stopped = False

    def begin(self) -> None:
        if not self._is_due:
            self._next()

    def _next(self) -> None:
        if self.is_stopped:
            return
        self._is_due = self._callback()
        if self._is_due:
            self._loop.call_soon(self._next)
