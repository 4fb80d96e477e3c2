"""`spawn: fork`: a server's process is forked from an interpreter that has loaded its libraries.

There is one zygote per server, interpreter, flags and environment (without the variables that differ from task to
task). A fork takes as long as a new interpreter needs until its first import, and forks share the memory of the loaded
modules. A server that cannot be forked is executed instead. The reason is saved, and `toolhub doctor` shows it.

    ForkServer ──> ForkTarget (one per server)  ──> ZygoteProcess ──> zygote.py: preload.py, then snapshot.py per fork
"""

from __future__ import annotations

import json
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
from toolhub.private_files import read_private, write_private
from toolhub.spawn.child import Child
from toolhub.spawn.fork.python_command import Program, parse_python_command
from toolhub.spawn.fork.target import ForkKey, ForkTarget, ForkUnavailable
from toolhub.spawn.fork.zygote_process import Spawn
from toolhub.spawn.journal import Journal

FALLBACKS = "fork_fallbacks.json"
"""Which servers were executed instead of forked, and why: a file in the hub's state directory."""
_FALLBACKS_BYTES = 1 << 20
# Variables that an interpreter, the C library or the loader reads before any program runs. Forks cannot differ in them.
_EARLY = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "TZ", "HOME", "PATH", "VIRTUAL_ENV", "OPENSSL_")
# Starts that differ in what an interpreter reads at its start need a zygote each. A server gets at most this many.
MOST_TARGETS = 8

logger = logging.getLogger(__name__)


class ForkServer:
    """Starts servers by forking. Use `open_forks()`."""

    def __init__(self, spawn: Spawn, tasks: anyio.abc.TaskGroup, journal: Journal | None) -> None:
        self.reasons: dict[str, str] = {}
        """Why servers were executed instead, by server name."""
        self._recorded: set[str] = set()
        self._spawn = spawn
        self._tasks = tasks
        self._journal = journal
        self._fallbacks = journal.path.parent.parent / FALLBACKS if journal is not None else None
        self._targets: dict[ForkKey, ForkTarget] = {}

    async def start(self, spec: ServerSpec, argv: Sequence[str], *, env: Mapping[str, str]) -> Child:
        """Start a server, with a fork if possible. Raises SpawnFailed."""
        cwd = os.path.abspath(spec.cwd or os.curdir)  # noqa: ASYNC240  # no disk access
        program = parse_python_command(argv, env=env, cwd=cwd)
        if isinstance(program, str):
            self._record_fallback(spec.name, program)
        else:
            try:
                child = await self._target(spec, program, env, cwd).start(_request(program, argv, env, cwd))
            except ForkUnavailable as exc:
                if not exc.is_temporary:
                    self._record_fallback(spec.name, str(exc))
            else:
                self._record_fallback(spec.name, None)
                return child
        return await self._spawn(argv, env=env, cwd=spec.cwd)

    def _record_fallback(self, server: str, reason: str | None) -> None:
        """Record why a server was executed. reason: None: it was forked."""
        if server in self._recorded and self.reasons.get(server) == reason:
            return  # the file has it already, as for most starts
        self._recorded.add(server)
        if reason is None:
            self.reasons.pop(server, None)
        else:
            self.reasons[server] = reason
            logger.warning("server %r is executed instead of forked: %s", server, reason)
        if self._fallbacks is not None:
            _save_fallback(self._fallbacks, server, reason)

    def _target(self, spec: ServerSpec, program: Program, env: Mapping[str, str], cwd: str) -> ForkTarget:
        """Return the target of this server, created if needed. Raises ForkUnavailable if it has too many targets."""
        fork_key = _fork_key(spec, program, env, cwd)
        if spec.has_cwd_per_task and not _is_relative(program, env):
            folder = "/" if program.module is not None else fork_key.folder
            fork_key = replace(fork_key, cwd="/", folder=folder, cwd_varies=True)
        if fork_key not in self._targets:
            if sum(other.server == fork_key.server for other in self._targets) >= MOST_TARGETS:
                raise ForkUnavailable(
                    "its working directory or variables that an interpreter reads first differ from start to start"
                )
            self._targets[fork_key] = ForkTarget(fork_key, spawn=self._spawn, tasks=self._tasks, journal=self._journal)
        return self._targets[fork_key]


def read_fallbacks(path: Path) -> dict[str, str]:
    """Return why servers with `spawn: fork` were executed instead, by server name. path: of the file FALLBACKS."""
    try:
        saved = json.loads(read_private(path, limit=_FALLBACKS_BYTES))
        return {str(name): str(reason) for name, reason in saved.items()}
    except (OSError, ValueError, RecursionError, AttributeError):
        return {}


def _save_fallback(path: Path, server: str, reason: str | None) -> None:
    saved = read_fallbacks(path)
    changed = {name: text for name, text in saved.items() if name != server} | ({server: reason} if reason else {})
    try:
        if changed != saved:
            write_private(path, json.dumps(changed).encode())
    except OSError as exc:  # a full disk must not stop the tools
        logger.debug("cannot save %s: %s", path, exc)


def _fork_key(spec: ServerSpec, program: Program, env: Mapping[str, str], cwd: str) -> ForkKey:
    per_task = frozenset(name for name in spec.task_variables if not name.startswith(_EARLY))
    common = tuple(sorted((name, value) for name, value in env.items() if name not in per_task))
    # Starts of a server that differ only in the program's arguments share a key: these may differ from task to task.
    without_args = Program(program.interpreter, program.module, program.script, (), program.own)
    folder = cwd if program.script is None else os.path.dirname(os.path.realpath(os.path.join(cwd, program.script)))
    return ForkKey(spec.name, without_args, common, cwd, folder, tuple(spec.preload), per_task)


def _is_relative(program: Program, env: Mapping[str, str]) -> bool:
    """Whether the interpreter or its module folders depend on the working directory."""
    command = program.interpreter[0]
    paths = [
        *env.get("PYTHONPATH", "/").split(os.pathsep),
        env.get("PYTHONHOME", "/"),
        *([command] * ("/" in command)),
    ]
    return not all(map(os.path.isabs, paths))


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
    """Hold a fork server. Leaving the block ends its zygotes and their servers."""
    try:
        async with anyio.create_task_group() as tasks:
            yield ForkServer(spawn, tasks, journal)
            tasks.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise unwrapped(group) from None  # it is the caller's error: the tasks of this group raise none
