"""One server that is started repeatedly: what it imports, and the zygote that has loaded these modules.

The first process is forked from an empty zygote and records its imports. Starts that come meanwhile wait for it, and
then for the zygote that loads these modules. Together that takes as long as two starts. Every later start takes a
fraction of one. A start that has waited too long raises ForkUnavailable, and the program is executed instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

from toolhub.limits.backoff import RestartIntensity
from toolhub.owned import Held, hold
from toolhub.spawn.child import Child, Request, SpawnFailed, StarterLost
from toolhub.spawn.fork.python_command import Program
from toolhub.spawn.fork.zygote_process import PreloadError, Spawn, ZygoteProcess, open_zygote
from toolhub.spawn.journal import Journal

# On a busy machine a Python server or a zygote starts in 1-3 s. A start that has waited longer than this saves no time.
START_WAIT_TIMEOUT_S = 10.0
# After this idle time the memory of a zygote costs more than the time of the next start.
IDLE_S = 300.0
# The empty zygote serves only the first process and ends after it.
_IDLE_EMPTY_S = 5.0
# After this time a failed target is tried again: the machine may have been busy, or the cause may be repaired.
COOLDOWN_S = 120.0
# Each attempt excludes more modules: those that the one before found, and then those that import them.
_MOST_ATTEMPTS = 8
_RECORD_BYTES, _MOST_NAMES = 1 << 20, 4000

logger = logging.getLogger(__name__)


class ForkUnavailable(Exception):
    """There is no zygote for this start. `is_temporary`: a later start may find one, so it is not reported."""

    def __init__(self, reason: str, *, is_temporary: bool = False) -> None:
        super().__init__(reason)
        self.is_temporary = is_temporary


@dataclass(frozen=True)
class ForkKey:
    """Everything that a zygote's process depends on. Starts with equal keys share a zygote."""

    server: str
    """The server's name. One program may run as several servers, whose arguments decide what they import."""
    program: Program
    env: tuple[tuple[str, str], ...]
    cwd: str
    """The zygote's working directory: that of the servers, or "/" if each server has a different one."""
    folder: str
    """The folder of the program's own modules."""
    preload: tuple[str, ...]
    task_variables: frozenset[str]
    cwd_varies: bool = False


class ForkTarget:
    """See the module's text. `tasks`: the task group of its zygotes."""

    def __init__(
        self,
        fork_key: ForkKey,
        *,
        spawn: Spawn,
        tasks: anyio.abc.TaskGroup,
        journal: Journal | None,
    ) -> None:
        self.fork_key = fork_key
        self.modules: dict[str, None] | None = dict.fromkeys(fork_key.preload) or None
        """What a zygote loads, in this order; None while no process was observed."""
        self.excluded: dict[str, str] = {}
        """Modules that a zygote must not load, with the reasons."""
        self._spawn = spawn
        self._tasks = tasks
        self._journal = journal
        self._zygote: Held[ZygoteProcess] | None = None
        self._changed = anyio.Event()
        self._is_learning = self._is_starting = False
        self._busy_since = 0.0
        self._failure = ""
        self._failed_at = 0.0
        self._intensity = RestartIntensity()

    async def start(self, request: Request) -> Child:
        """Fork a process. Raises ForkUnavailable; SpawnFailed if executing the program would fail too."""
        with anyio.move_on_after(START_WAIT_TIMEOUT_S):
            while True:
                if self._failure and anyio.current_time() - self._failed_at < COOLDOWN_S:
                    raise ForkUnavailable(self._failure)
                if self._zygote is not None and self._zygote.value.is_alive:
                    try:
                        return await self._fork(self._zygote.value, request)
                    except StarterLost:
                        self._zygote = None  # it ended in the moment of the request
                elif self.modules is None and not self._is_learning:
                    return await self._start_first(request)
                else:
                    await self._wait_for_change()
        raise ForkUnavailable(f"its zygote was not ready within {START_WAIT_TIMEOUT_S:g} s", is_temporary=True)

    async def _wait_for_change(self) -> None:
        """Wait until this target's state changes. Starts a zygote if none is starting."""
        is_busy = self._is_learning or self._is_starting
        if is_busy and anyio.current_time() - self._busy_since > START_WAIT_TIMEOUT_S:
            raise ForkUnavailable(
                f"its first process or its zygote was not ready within {START_WAIT_TIMEOUT_S:g} s", is_temporary=True
            )
        if not is_busy:
            self._is_starting, self._busy_since = True, anyio.current_time()
            self._tasks.start_soon(self._start_zygote, name=f"zygote of {self.fork_key.program.name}")
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- the first process, and its imports ---------------------------------------------------------------------------

    async def _start_first(self, request: Request) -> Child:
        self._is_learning, self._busy_since = True, anyio.current_time()
        try:
            empty = await hold(self._tasks, self._open([], _IDLE_EMPTY_S), until=ZygoteProcess.wait_gone, name="zygote")
            return await self._fork(empty.value, request)
        except (PreloadError, SpawnFailed) as exc:
            self._stop_learning()
            raise ForkUnavailable(str(exc)) from exc
        except BaseException:
            self._stop_learning()
            raise

    def _stop_learning(self) -> None:
        if self._is_learning:
            self._is_learning = False
            self._notify()

    async def _fork(self, zygote: ZygoteProcess, request: Request) -> Child:
        if zygote.forks or self.fork_key.preload:
            return await zygote.fork(request)
        record = os.memfd_create("imports")
        try:
            child = await zygote.fork(request, recorder=record)
        except BaseException:
            os.close(record)
            raise
        child.on_ready = lambda: self._learn(record)
        child.on_close = lambda: self._end_record(record)
        return child

    def _learn(self, record: int) -> None:
        """Add what a process has imported so far. It has answered its handshake, or has ended."""
        names = os.pread(record, _RECORD_BYTES, 0).decode("utf-8", "replace").splitlines()
        known = self.modules or {}
        known |= dict.fromkeys(name for name in names if all(map(str.isidentifier, name.split("."))))
        self.modules = dict.fromkeys(list(known)[:_MOST_NAMES])
        self._stop_learning()

    def _end_record(self, record: int) -> None:
        if self.modules is not None:
            self._learn(record)  # adds what it imported after its handshake
        self._stop_learning()
        os.close(record)

    # --- the zygote ---------------------------------------------------------------------------------------------------

    async def _start_zygote(self) -> None:
        try:
            self._zygote = await self._preloaded_zygote()
            self._tasks.start_soon(self._watch, self._zygote)
        except (PreloadError, SpawnFailed) as exc:
            self._fail(str(exc))
        finally:
            self._is_starting = False
            self._notify()

    async def _preloaded_zygote(self) -> Held[ZygoteProcess]:
        """Start zygotes until one has loaded every module that is safe to load."""
        for _ in range(_MOST_ATTEMPTS):
            opened = self._open(self.modules or (), IDLE_S)
            try:
                return await hold(self._tasks, opened, until=ZygoteProcess.wait_gone, name="zygote")
            except PreloadError as exc:
                if not exc.unsafe:
                    raise
                if self.fork_key.preload:
                    raise PreloadError(f"{next(iter(exc.unsafe.values()))}; remove it from `preload`") from exc
                for module, reason in exc.unsafe.items():
                    logger.info("%s: %s is not preloaded: %s", self.fork_key.program.name, module, reason)
                self.excluded.update(exc.unsafe)
        raise PreloadError(
            f"too many of the modules that it imports cannot be preloaded: {', '.join(self.excluded)} (the last one: "
            f"{list(self.excluded.values())[-1]}). List others in `preload`; then only those are loaded"
        )

    def _open(self, modules: Iterable[str], idle_s: float) -> Any:
        fork_key = self.fork_key
        order: Mapping[str, Any] = {
            "modules": list(modules),
            "own": sorted(fork_key.program.own),
            "excluded": list(self.excluded),
            "preload": list(fork_key.preload) if idle_s != _IDLE_EMPTY_S else [],
            "folder": fork_key.folder,
            "task_variables": sorted(fork_key.task_variables),
            "cwd_varies": fork_key.cwd_varies,
            "idle_s": idle_s,
            "env": dict(fork_key.env),
        }
        return open_zygote(self._spawn, fork_key.program.interpreter, order, cwd=fork_key.cwd, journal=self._journal)

    async def _watch(self, held: Held[ZygoteProcess]) -> None:
        """Wait for the zygote's end. If zygotes die too often, this target fails for a while."""
        child = held.value.child
        await held.wait_closed()
        if self._zygote is held:
            self._zygote = None
        if child.exit_code != 0 and not self._intensity.record(anyio.current_time()):
            self._fail(f"its zygote died too often (the last one with exit code {child.exit_code})")
        self._notify()

    def _fail(self, reason: str) -> None:
        self._failure, self._failed_at = reason, anyio.current_time()
        self._intensity.reset()

    def __repr__(self) -> str:
        known = "unknown" if self.modules is None else len(self.modules)
        return f"<ForkTarget {self.fork_key.program.name} modules={known} zygote={self._zygote is not None}>"
