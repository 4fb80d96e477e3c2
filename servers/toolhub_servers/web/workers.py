"""CPU work in worker processes: what reads a hostile page or PDF has a bound in time and in memory.

anyio keeps the workers and starts them anew when they die. Limits are set inside the worker, before each piece of work;
a wall-clock limit is kept from outside. A worker dies with its hub, however that ends.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_process

from toolhub_servers.web.errors import TooCostly

T = TypeVar("T")

# Work that has used its time on a CPU is ended by the kernel even if the hub is too busy to do it.
_CPU_GRACE_S = 1
_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("_limiter")


async def offload(function: Callable[..., T], *args: Any, timeout: float = 60, memory_bytes: int = 2 << 30) -> T:
    """Return `function(*args)`, run in another process; at most one for each core, the others wait.

    function, arguments and result travel pickled: a function of a module, no lambda. The worker imports the program's
    main module, as `multiprocessing` does, and has its environment. timeout: seconds from when it may run.
    memory_bytes: address space that it may add to an empty worker's. Raises TooCostly if a bound is reached or the
    process dies, and whatever the function raises.
    """
    name = getattr(function, "__qualname__", repr(function))
    cpu_s = math.ceil(timeout) + _CPU_GRACE_S
    async with _places():
        with anyio.move_on_after(timeout):
            try:
                return await anyio.to_process.run_sync(_work, function, args, cpu_s, memory_bytes, cancellable=True)
            except MemoryError as exc:
                raise TooCostly(f"{name} needed more than {memory_bytes >> 20} MiB of memory") from exc
            except anyio.BrokenWorkerProcess as exc:
                raise TooCostly(f"{name} took the process down that it ran in") from exc
    raise TooCostly(f"{name} was not done within {timeout:g} s")


def _places() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_cores())
        _limiter.set(limiter)
        return limiter


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


# --- in the worker ----------------------------------------------------------------------------------------------------

_STDIN = 0  # where anyio sends the work; it is open as long as the hub lives
_OUTPUTS = (1, 2)
_empty_bytes: int | None = None


def _work(function: Callable[..., T], args: tuple[Any, ...], cpu_s: int, memory_bytes: int) -> T:
    with (
        _limited(resource.RLIMIT_CORE, 0),
        _limited(resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_s),
        _limited(resource.RLIMIT_AS, _size_of_an_empty_worker() + memory_bytes),
        _unheard(),
        _dying_with_the_hub(),
    ):
        return function(*args)


@contextmanager
def _limited(kind: int, wanted: int) -> Iterator[None]:
    """Bound this process, and lift the bound again: the next work and its arguments come with their own."""
    before, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (before, hard))


@contextmanager
def _unheard() -> Iterator[None]:
    """Drop what C libraries print: stdout is the way to the hub, and nobody reads stderr, which would fill up."""
    kept = [os.dup(descriptor) for descriptor in _OUTPUTS]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _OUTPUTS:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    try:
        yield
    finally:
        for descriptor, copy in zip(_OUTPUTS, kept, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def _size_of_an_empty_worker() -> int:
    """Bytes of address space before the first work: what that leaves behind counts against the next."""
    global _empty_bytes
    if _empty_bytes is None:
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
        except OSError:  # not Linux, where this bound does not hold anyway
            pages = 0
        _empty_bytes = pages * resource.getpagesize()
    return _empty_bytes


@contextmanager
def _dying_with_the_hub() -> Iterator[None]:
    """Have the kernel kill this process when the hub's end of stdin closes, even if it is inside a C function.

    PR_SET_PDEATHSIG would not do: it is about the thread that started the process, which may end before the hub.
    """
    if sys.platform != "linux":  # the bound on CPU time has to do
        yield
        return
    flags = fcntl.fcntl(_STDIN, fcntl.F_GETFL)
    fcntl.fcntl(_STDIN, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(_STDIN, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(_STDIN, fcntl.F_SETFL, flags | os.O_ASYNC)
    _end_if_the_hub_is_gone()
    try:
        yield
    finally:  # the next work would look like an end
        fcntl.fcntl(_STDIN, fcntl.F_SETFL, flags)


def _end_if_the_hub_is_gone() -> None:
    poll = select.poll()
    poll.register(_STDIN, 0)
    if poll.poll(0):
        os._exit(1)
