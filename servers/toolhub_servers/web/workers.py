"""CPU work in confined processes: parsing an untrusted page or PDF is bounded in time and in memory.

The processes are used again. A process that dies or takes too long fails only its own call.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import anyio.lowlevel
from anyio import to_thread
from pydantic import TypeAdapter, ValidationError

from toolhub_servers.confined.process import (
    CallTimeout,
    ConfinedProcess,
    FunctionRaised,
    NotConfined,
    ProcessDied,
    folder_of_code,
)
from toolhub_servers.web.errors import ConfinementUnavailable, ResourceLimitExceeded

T = TypeVar("T")

# A process that was idle for longer is ended when the next one is needed. It takes about 100 MB.
_IDLE_S = 300.0
_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("_limiter")


async def offload(
    function: Callable[..., Any],
    *args: Any,
    returns: type[T],
    raises: tuple[type[Exception], ...] = (),
    timeout: float = 60,
    memory_bytes: int = 2 << 30,
) -> T:
    """Return `function(*args)`, run in a confined process. There is at most one per core; further calls wait.

    function: of a module, not a lambda. Arguments are JSON values or bytes. returns: the type of the result, which
    comes as JSON and is checked; dataclasses are possible. raises: exceptions of the function that are raised here with
    their texts; all others become RuntimeError. timeout: seconds from the moment when the call may run. memory_bytes:
    address space that the call may add to that of an idle process. Raises ResourceLimitExceeded if a bound is reached
    or the process dies, ConfinementUnavailable if no process can be confined here.
    """
    job = _Job(function, args, timeout, memory_bytes)
    try:
        value = await to_thread.run_sync(job.run, limiter=_worker_limiter(), abandon_on_cancel=True)
    except FunctionRaised as exc:
        for known in raises:
            if known.__name__ == exc.kind:
                raise known(exc.message) from None
        if exc.kind == "MemoryError":
            raise ResourceLimitExceeded(f"{job.name} needed more than {memory_bytes >> 20} MiB of memory") from None
        raise RuntimeError(f"{job.name} raised {exc}") from None
    except ProcessDied as exc:
        raise ResourceLimitExceeded(f"{job.name} ended the process that it ran in: {exc}") from None
    except CallTimeout:
        raise ResourceLimitExceeded(f"{job.name} was not done within {timeout:g} s") from None
    except NotConfined as exc:
        raise ConfinementUnavailable(str(exc)) from exc
    finally:
        job.end()
    try:
        return TypeAdapter(returns).validate_python(value, strict=False)
    except ValidationError as exc:
        raise ResourceLimitExceeded(f"{job.name} returned a result of another type") from exc


class _Job:
    """One call. `run` is for a worker thread, `end` for the event loop."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], timeout: float, memory_bytes: int) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self._function = function
        self._args = args
        self._timeout = timeout
        self._memory_bytes = memory_bytes
        self._code = folder_of_code(function)
        self._lock = Lock()
        self._has_ended = False
        self._process: ConfinedProcess | None = None

    def run(self) -> Any:
        deadline = time.monotonic() + self._timeout
        process = _IDLE.take(self._code) or ConfinedProcess(code=self._code)
        with self._lock:
            if self._has_ended:  # the caller was cancelled meanwhile
                _IDLE.give(self._code, process)
                return None
            self._process = process
        is_good = False
        try:
            left = max(deadline - time.monotonic(), 0)
            value = process.call(self._function, *self._args, timeout=left, memory_bytes=self._memory_bytes)
            is_good = True
            return value
        except FunctionRaised:
            is_good = True
            raise
        finally:
            with self._lock:
                self._process = None
            if is_good:
                _IDLE.give(self._code, process)
            else:
                process.close()

    def end(self) -> None:
        """Kill the work if it is still running. Its process has no other work."""
        with self._lock:
            self._has_ended = True
            if self._process is not None:
                self._process.kill()


class _Idle:
    """Idle processes, by the code that they may read besides ours. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: dict[str | None, list[tuple[float, ConfinedProcess]]] = defaultdict(list)

    def take(self, code: str | None) -> ConfinedProcess | None:
        """Return the process that was used last; end those that were idle for too long."""
        now = time.monotonic()
        with self._lock:
            waiting = self._waiting[code]
            found = waiting.pop()[1] if waiting else None
            stale = [process for since, process in waiting if now - since > _IDLE_S]
            waiting[:] = [(since, process) for since, process in waiting if now - since <= _IDLE_S]
        for process in stale:
            process.close()
        return found

    def give(self, code: str | None, process: ConfinedProcess) -> None:
        with self._lock:
            self._waiting[code].append((time.monotonic(), process))

    def close(self) -> None:
        """End them all."""
        with self._lock:
            waiting = [process for processes in self._waiting.values() for _, process in processes]
            self._waiting.clear()
        for process in waiting:
            process.close()


_IDLE = _Idle()
atexit.register(_IDLE.close)


def _worker_limiter() -> anyio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_cores())
        _limiter.set(limiter)
        return limiter


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
