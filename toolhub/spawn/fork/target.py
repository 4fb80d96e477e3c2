"""One program that is started again and again: what it imports, and the zygote that has that loaded.

Its first process comes from a zygote that has nothing loaded, and writes down what it imports. Whoever wants another
one meanwhile waits for it, and then for the zygote that loads these modules: together that takes as long as two starts,
and every start after it takes a fraction of one. Whoever has waited too long is told to execute the program instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

from toolhub.limits.backoff import RestartIntensity
from toolhub.owned import Held, hold
from toolhub.spawn.child import Child, Request, SpawnFailed, StarterLost
from toolhub.spawn.fork.import_profile import ImportProfile, ImportProfiles
from toolhub.spawn.fork.python_command import Program
from toolhub.spawn.fork.zygote_process import PreloadError, Spawn, ZygoteProcess, open_zygote
from toolhub.spawn.journal import Journal

# On a busy machine a Python server is up in 1-3 s, and so is a zygote; who has waited longer gains nothing by it.
START_WAIT_TIMEOUT_S = 10.0
# A zygote that nobody needed for so long costs more memory than the next start costs time.
IDLE_S = 300.0
# The zygote of a first process has no other; it ends with it.
_IDLE_BARE_S = 5.0
# After that long it is tried once more: what was wrong may have been the machine's load, or was repaired.
COOLDOWN_S = 120.0
# Each attempt leaves out at least one module more; a program with more culprits than that is better executed.
_MOST_ATTEMPTS = 8
_RECORD_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class Unavailable(Exception):
    """There is no zygote for this start. `lasting`: it is worth telling, and not only a matter of time."""

    def __init__(self, why: str, *, lasting: bool = True) -> None:
        super().__init__(why)
        self.lasting = lasting


@dataclass(frozen=True)
class ForkKey:
    """What a zygote's process is made from: equal ones can share a zygote."""

    program: Program
    env: tuple[tuple[str, str], ...]
    cwd: str
    """The zygote's working directory: the servers' own, or "/" for servers that each have another."""
    folder: str
    """Where the program's own modules lie."""
    opted: tuple[str, ...]
    task_variables: frozenset[str]
    cwd_varies: bool = False

    @property
    def identity(self) -> list[str]:
        """Names what was learned, over restarts: no values of variables in it."""
        return [*self.program.interpreter, self.program.name, self.folder]


class ForkTarget:
    """See the module's text. `tasks`: where its zygotes live."""

    def __init__(
        self,
        fork_key: ForkKey,
        *,
        spawn: Spawn,
        tasks: anyio.abc.TaskGroup,
        files: ImportProfiles,
        journal: Journal | None,
    ) -> None:
        self.fork_key = fork_key
        self.modules: ImportProfile = files.load(fork_key.identity)
        self._spawn = spawn
        self._tasks = tasks
        self._files = files
        self._journal = journal
        self._zygote: Held[ZygoteProcess] | None = None
        self._changed = anyio.Event()
        self._is_learning = self._is_starting = False
        self._busy_since = 0.0
        self._broken = ""
        self._broken_at = 0.0
        self._intensity = RestartIntensity()

    async def start(self, request: Request) -> Child:
        """Fork a process. Raises Unavailable, or SpawnFailed where executing it would fail as well."""
        with anyio.move_on_after(START_WAIT_TIMEOUT_S):
            while True:
                if self._broken and anyio.current_time() - self._broken_at < COOLDOWN_S:
                    raise Unavailable(self._broken)
                if self._zygote is not None and self._zygote.value.is_alive:
                    try:
                        return await self._fork(self._zygote.value, request)
                    except StarterLost:
                        self._zygote = None  # it ended as we asked it
                elif self.modules.names is None and not self._is_learning:
                    return await self._first(request)
                else:
                    await self._progress()
        raise Unavailable(f"its interpreter was not ready within {START_WAIT_TIMEOUT_S:g} s", lasting=False)

    async def _progress(self) -> None:
        """Wait until something about this target is different; have a zygote started if that is what is missing."""
        is_busy = self._is_learning or self._is_starting
        if is_busy and anyio.current_time() - self._busy_since > START_WAIT_TIMEOUT_S:
            raise Unavailable("its first process, or its interpreter, takes long to get ready", lasting=False)
        if not is_busy:
            self._is_starting, self._busy_since = True, anyio.current_time()
            self._tasks.start_soon(self._start_zygote, name=f"zygote of {self.fork_key.program.name}")
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- the first process, and what it imports -----------------------------------------------------------------------

    async def _first(self, request: Request) -> Child:
        self._is_learning, self._busy_since = True, anyio.current_time()
        try:
            bare = await hold(self._tasks, self._open([], _IDLE_BARE_S), until=ZygoteProcess.wait_gone, name="zygote")
            return await self._fork(bare.value, request)
        except (PreloadError, SpawnFailed) as exc:
            self._stop_learning()
            raise Unavailable(str(exc)) from exc
        except BaseException:
            self._stop_learning()
            raise

    def _stop_learning(self) -> None:
        if self._is_learning:
            self._is_learning = False
            self._notify()

    async def _fork(self, zygote: ZygoteProcess, request: Request) -> Child:
        if zygote.forks:
            return await zygote.fork(request)
        record = os.memfd_create("imports")
        try:
            child = await zygote.fork(request, more=[record])
        except BaseException:
            os.close(record)
            raise
        child.on_ready = lambda: self._learn(record)
        child.on_close = lambda: self._end_record(record)
        return child

    def _learn(self, record: int) -> None:
        """Take over what a process has imported so far; its handshake is answered, or it has come to its end."""
        names = os.pread(record, _RECORD_BYTES, 0).decode("utf-8", "replace").splitlines()
        if self.modules.add(names):
            self._files.save(self.fork_key.identity, self.modules)
        self._stop_learning()

    def _end_record(self, record: int) -> None:
        if self.modules.names is not None:
            self._learn(record)  # what it imported later
        self._stop_learning()
        os.close(record)

    # --- the zygote ---------------------------------------------------------------------------------------------------

    async def _start_zygote(self) -> None:
        try:
            self._zygote = await self._fit_zygote()
            self._tasks.start_soon(self._watch, self._zygote)
        except (PreloadError, SpawnFailed) as exc:
            self._break(str(exc))
        finally:
            self._is_starting = False
            self._notify()

    async def _fit_zygote(self) -> Held[ZygoteProcess]:
        """Start zygotes until one has everything loaded that can be."""
        careful = False
        for _ in range(_MOST_ATTEMPTS):
            opened = self._open(self.modules.names or [], IDLE_S, careful=careful)
            try:
                return await hold(self._tasks, opened, until=ZygoteProcess.wait_gone, name="zygote")
            except PreloadError as exc:
                if not exc.modules and careful:
                    raise
                self._exclude(exc.modules, exc.why)
                careful = True
        why = next(reversed(self.modules.excluded.values()))
        raise PreloadError(f"too many of the modules it imports cannot be loaded ahead; the last one: {why}")

    def _exclude(self, modules: Sequence[str], why: str) -> None:
        if modules:
            reason = f"{modules[-1]}: {why}"
            logger.info("%s: %s is not loaded ahead: %s", self.fork_key.program.name, ", ".join(modules), reason)
            self.modules.excluded.update(dict.fromkeys(modules, reason))
            self._files.save(self.fork_key.identity, self.modules)

    def _open(self, modules: Sequence[str], idle_s: float, *, careful: bool = False) -> Any:
        fork_key = self.fork_key
        order: Mapping[str, Any] = {
            "modules": list(modules),
            "own": sorted(fork_key.program.own),
            "excluded": list(self.modules.excluded),
            "opted": list(fork_key.opted) if idle_s != _IDLE_BARE_S else [],
            "folder": fork_key.folder,
            "task_variables": sorted(fork_key.task_variables),
            "cwd_varies": fork_key.cwd_varies,
            "careful": careful,
            "idle_s": idle_s,
            "env": dict(fork_key.env),
        }
        return open_zygote(self._spawn, fork_key.program.interpreter, order, cwd=fork_key.cwd, journal=self._journal)

    async def _watch(self, held: Held[ZygoteProcess]) -> None:
        """Hear of the zygote's end; one that dies too often is left alone for a while."""
        child = held.value.child
        await held.wait_closed()
        if self._zygote is held:
            self._zygote = None
        if child.exit_code != 0 and not self._intensity.record(anyio.current_time()):
            self._break(f"the interpreter to fork from died again and again (last with {child.exit_code})")
        self._notify()

    def _break(self, why: str) -> None:
        self._broken, self._broken_at = why, anyio.current_time()
        self._intensity.reset()

    def __repr__(self) -> str:
        known = "unknown" if self.modules.names is None else len(self.modules.names)
        return f"<ForkTarget {self.fork_key.program.name} modules={known} zygote={self._zygote is not None}>"
