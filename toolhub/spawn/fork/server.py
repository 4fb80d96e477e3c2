"""`spawn: fork`: a server's process comes from an interpreter that has its libraries loaded.

A zygote per program, interpreter, flags and environment (but for what differs from task to task) forks a process in
the time that an execution needs to find its first import, and the forks share the memory of what was loaded. What
cannot be forked is executed, and the reason kept: `toolhub doctor` shows it.

    ForkServer ──> ForkTarget (one per program) ──> ZygoteProcess ──> zygote.py: preloading.py, then fresh.py per fork
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.abc

from toolhub.config import ServerSpec
from toolhub.owned import unwrapped
from toolhub.spawn.child import Child
from toolhub.spawn.fork.import_profile import ImportProfiles
from toolhub.spawn.fork.python_command import Program, parse_python_command
from toolhub.spawn.fork.target import ForkKey, ForkTarget, Unavailable
from toolhub.spawn.fork.zygote_process import Spawn
from toolhub.spawn.journal import Journal

FOLDER = "fork"
"""Below the hub's state directory: what was learned."""
# Variables that an interpreter, the C library or the loader reads before any program runs: forks cannot differ in them.
_EARLY = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "TZ", "HOME", "PATH", "VIRTUAL_ENV", "OPENSSL_")
# A server with more working directories than this has one per task, and a zygote that stands in none of them.
MOST_CWDS = 2
# Nor is there a zygote for each task where the tasks differ in what an interpreter starts with.
MOST_TARGETS = 8

logger = logging.getLogger(__name__)


class ForkServer:
    """Starts servers by forking. Use `open_forks()`."""

    def __init__(self, spawn: Spawn, tasks: anyio.abc.TaskGroup, journal: Journal | None) -> None:
        self.reasons: dict[str, str] = {}
        """Why servers were executed instead, by name."""
        self._noted: set[str] = set()
        self._spawn = spawn
        self._tasks = tasks
        self._journal = journal
        self._files = import_profiles(journal.path.parent.parent if journal is not None else None)
        self._targets: dict[ForkKey, ForkTarget] = {}
        self._cwds: dict[ForkKey, set[str]] = {}

    async def start(self, spec: ServerSpec, argv: Sequence[str], *, env: Mapping[str, str]) -> Child:
        """Start a server, by fork if that is possible. Raises SpawnFailed."""
        cwd = os.path.abspath(spec.cwd or os.curdir)  # noqa: ASYNC240  # no disk access
        program = parse_python_command(argv, env=env, cwd=cwd)
        if isinstance(program, str):
            self._told(spec.name, program)
        else:
            try:
                child = await self._target(spec, program, env, cwd).start(_request(program, argv, env, cwd))
            except Unavailable as exc:
                if exc.lasting:
                    self._told(spec.name, str(exc))
            else:
                self._told(spec.name, None)
                return child
        return await self._spawn(argv, env=env, cwd=spec.cwd)

    def _told(self, server: str, reason: str | None) -> None:
        if server in self._noted and self.reasons.get(server) == reason:
            return  # most starts: the disk has it already
        self._noted.add(server)
        if reason is None:
            self.reasons.pop(server, None)
        else:
            self.reasons[server] = reason
            logger.warning("fork: server %r falls back to exec: %s", server, reason)
        self._files.set_fallback(server, reason)

    def _target(self, spec: ServerSpec, program: Program, env: Mapping[str, str], cwd: str) -> ForkTarget:
        """Return what starts this program on this fork_key. Raises Unavailable where there are too many grounds."""
        fork_key = _fork_key(spec, program, env, cwd)
        cwds = self._cwds.setdefault(replace(fork_key, cwd="", folder=""), set())
        if cwd not in cwds and len(cwds) < MOST_CWDS:
            cwds.add(cwd)
        if cwd not in cwds and not _is_relative(program, env):
            folder = "/" if program.module is not None else fork_key.folder
            fork_key = replace(fork_key, cwd="/", folder=folder, cwd_varies=True)
        if fork_key not in self._targets:
            if sum(other.program == fork_key.program for other in self._targets) >= MOST_TARGETS:
                raise Unavailable("variables that an interpreter reads as it starts differ from start to start")
            self._targets[fork_key] = ForkTarget(
                fork_key, spawn=self._spawn, tasks=self._tasks, files=self._files, journal=self._journal
            )
        return self._targets[fork_key]


def import_profiles(state_dir: Path | None) -> ImportProfiles:
    """What hubs with that state directory have learned."""
    return ImportProfiles(state_dir / FOLDER if state_dir is not None else None)


def _fork_key(spec: ServerSpec, program: Program, env: Mapping[str, str], cwd: str) -> ForkKey:
    per_task = frozenset(name for name in spec.task_variables if not name.startswith(_EARLY))
    common = tuple(sorted((name, value) for name, value in env.items() if name not in per_task))
    # The same program whatever its arguments are.
    bare = Program(program.interpreter, program.module, program.script, (), program.own)
    folder = cwd if program.script is None else os.path.dirname(os.path.realpath(os.path.join(cwd, program.script)))
    return ForkKey(bare, common, cwd, folder, tuple(spec.preload), per_task)


def _is_relative(program: Program, env: Mapping[str, str]) -> bool:
    """Whether the interpreter, or what it loads its modules from, is another one in another working directory."""
    command = program.interpreter[0]
    places = [
        *env.get("PYTHONPATH", "/").split(os.pathsep),
        env.get("PYTHONHOME", "/"),
        *([command] * ("/" in command)),
    ]
    return not all(map(os.path.isabs, places))


def _request(program: Program, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> dict[str, object]:
    return {
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "module": program.module,
        "script": program.script,
        "line": program.command_line(),
        "args": len(program.args),
        "title": program.title,
    }


@asynccontextmanager
async def open_forks(spawn: Spawn, journal: Journal | None) -> AsyncIterator[ForkServer]:
    """Hold a fork server; leaving ends its zygotes and their servers."""
    try:
        async with anyio.create_task_group() as tasks:
            yield ForkServer(spawn, tasks, journal)
            tasks.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise unwrapped(group) from None  # the caller's own error: its tasks raise none
