"""What npx and uvx really run, remembered, so that the next start can do without them.

They take half a second to find what they found the time before, and stay in memory beside the server. Once a server has
come up, the process below its launcher is looked at: its program, its script, what the launcher put in front of PATH.
Where nothing about that is in doubt it is written down and executed directly from then on, until one of its files has
changed, or for a day when no exact version was asked for. The arguments of the server are not part of it, and no value
of its environment but those that launchers add themselves.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolhub.private_files import read_private, write_private
from toolhub.spawn.launchers.command_lines import Launch, is_launcher, launch_of
from toolhub.spawn.supervisor import children

FORMAT = 1
MAX_BYTES = 1024 * 1024
MAX_ENTRIES = 200
# npx asks the registry about a version that is not exact; once a day is enough to get new ones.
UNPINNED_S = FAILED_S = 24 * 3600.0
# One failure may be the server's own. Who fails twice, and comes up behind its launcher, is left to that for a day.
MOST_FAILURES = 2
# By these a program finds the package manager it was started with.
_ADDED = ("NODE", "npm_execpath", "npm_node_execpath", "npm_config_user_agent", "UV")
_DEEPEST = 6

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Command:
    """What is executed: words, the whole environment, the working directory (None: the hub's)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None


@dataclass(frozen=True)
class Resolution:
    """What a launcher ran. path: folders that it put in front of PATH. files: size, time and inode of each."""

    at: float
    argv: list[str] = dataclasses.field(default_factory=list)
    path: list[str] = dataclasses.field(default_factory=list)
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    files: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    is_pinned: bool = False
    failures: int = 0

    def is_current(self, now: float) -> bool:
        if not self.argv or not (self.is_pinned or 0 <= now - self.at < UNPINNED_S):
            return False
        return all(_state(path) == state for path, state in self.files.items())

    def failures_that_count(self, now: float) -> int:
        return self.failures if 0 <= now - self.at < FAILED_S else 0


class Resolver:
    """The memory of launchers' commands, in one file. Nothing here ever fails a start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Resolution] | None = None

    def resolve(self, command: Command) -> Command | None:
        """Return what to execute instead of a launcher, or None when only the launcher knows."""
        launch = launch_of(command.argv)
        if launch is None:
            return None
        found = self._all().get(_key(launch, command))
        if found is None or not found.is_current(time.time()):
            return None
        path = os.pathsep.join([*found.path, *filter(None, [command.env.get("PATH")])])
        added = {name: value for name, value in found.env.items() if name not in command.env}
        return Command([*found.argv, *launch.arguments], {**command.env, **added, "PATH": path}, command.cwd)

    def learn(self, command: Command, pid: int | None) -> None:
        """Look at a server that has come up behind its launcher, which is the process `pid`."""
        launch = launch_of(command.argv)
        if launch is None or pid is None:
            return
        key, now = _key(launch, command), time.time()
        before = self._all().get(key)
        failures = before.failures_that_count(now) if before else 0
        if failures >= MOST_FAILURES or (before is not None and before.is_current(now)):
            return
        try:
            found = _look(launch, command, pid)
        except (OSError, ValueError) as exc:
            logger.debug("what %s runs could not be seen: %s", launch.launcher, exc)
            return
        if found is not None:
            self._save(key, dataclasses.replace(found, at=now, failures=failures))

    def forget(self, command: Command) -> None:
        """What was executed instead of the launcher did not come up."""
        launch = launch_of(command.argv)
        if launch is not None:
            key, now = _key(launch, command), time.time()
            before = self._all().get(key)
            self._save(key, Resolution(now, failures=1 + (before.failures_that_count(now) if before else 0)))

    def _all(self) -> dict[str, Resolution]:
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> dict[str, Resolution]:
        try:
            document = json.loads(read_private(self._path, limit=MAX_BYTES))
            if document["format"] == FORMAT:
                return {key: _from_wire(entry) for key, entry in document["commands"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError) as exc:
            logger.debug("%s is not used: %r", self._path, exc)
        return {}

    def _save(self, key: str, found: Resolution) -> None:
        """Another hub may have written meanwhile: what it learned is kept, but for this key."""
        known = sorted((self._read() | {key: found}).items(), key=lambda item: item[1].at)[-MAX_ENTRIES:]
        self._known = dict(known) | {key: found}
        document = {"format": FORMAT, "commands": {key: dataclasses.asdict(entry) for key, entry in known}}
        try:
            write_private(self._path, json.dumps(document).encode())
        except OSError as exc:
            logger.debug("%s cannot be written: %s", self._path, exc)


def _key(launch: Launch, command: Command) -> str:
    """A digest of all that decides what the launcher runs; the words themselves may name secrets."""
    decisive = {name: value for name, value in command.env.items() if _is_decisive(name)}
    anchor = launch.anchor(os.path.abspath(command.cwd or os.curdir))
    identity = json.dumps([launch.head, anchor, decisive], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _is_decisive(name: str) -> bool:
    return name in ("PATH", "HOME") or name.lower().startswith(("npm_config_", "uv_", "xdg_"))


def _from_wire(entry: dict[str, Any]) -> Resolution:
    found = Resolution(**entry)
    texts = [*found.argv, *found.path, *found.env, *found.env.values(), *found.files]
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.at + found.failures, float):
        raise ValueError("an entry is malformed")
    return found


# --- looking at what runs ---------------------------------------------------------------------------------------------


def _look(launch: Launch, command: Command, pid: int) -> Resolution | None:
    """Return what runs below the launcher `pid`; None when it cannot be told for sure.

    Raises OSError where a process is gone or there is no /proc.
    """
    server = _server_below(pid)
    if server is None:
        return None
    words, env = _words(server, "cmdline"), _environment(server)
    count = len(launch.arguments)
    head, arguments = words[: len(words) - count], words[len(words) - count :]
    program = shutil.which(head[0], path=env.get("PATH")) if head else None
    front = _put_in_front(env.get("PATH", ""), command.env.get("PATH", ""))
    if program is None or tuple(arguments) != launch.arguments or front is None:
        return None
    script = head[-1] if len(head) > 1 else program
    is_moved = not os.path.samefile(f"/proc/{server}/cwd", command.cwd or os.curdir)
    # The program as it was called, since a virtual environment is known by its python's path; but no other program.
    if is_moved or not os.path.samefile(program, f"/proc/{server}/exe") or not os.path.isabs(script):
        return None
    return Resolution(
        0.0,
        argv=[program, *head[1:]],
        path=front,
        env={name: env[name] for name in _ADDED if name in env},
        files={path: state for path in _files(program, script) if (state := _state(path))},
        is_pinned=launch.is_pinned,
    )


def _server_below(pid: int) -> int | None:
    """Go down from the launcher to the first process that is none."""
    for _ in range(_DEEPEST):
        if not is_launcher(_words(pid, "cmdline")):
            return pid
        below = children(pid)
        if len(below) != 1:
            return None
        (pid,) = below
    return None


def _words(pid: int, name: str) -> list[str]:
    content = Path(f"/proc/{pid}/{name}").read_bytes()
    return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]


def _environment(pid: int) -> dict[str, str]:
    pairs = (word.partition("=") for word in _words(pid, "environ"))
    return {name: value for name, equals, value in pairs if equals}


def _put_in_front(path: str, given: str) -> list[str] | None:
    """Return the folders in front of the PATH that was given; None when it was changed in another way."""
    if not path.endswith(given):
        return None
    return [folder for folder in path.removesuffix(given).split(os.pathsep) if os.path.isdir(folder)]


def _files(program: str, script: str) -> list[str]:
    """The files that differ once another version is installed: npm gives every file of every version one time."""
    real = os.path.realpath(script)
    above = (os.path.join(folder, "package.json") for folder in map(str, Path(real).parents))
    return [program, script, *next(([path] for path in above if os.path.isfile(path)), [])]


def _state(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino]
