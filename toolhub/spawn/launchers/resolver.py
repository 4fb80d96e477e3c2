"""Remember which commands npx and uvx execute, so that the next start needs no launcher.

A launcher takes half a second to find the same program again, and stays in memory beside the server: 30 MiB of `npx`,
40 to 80 MiB of `uvx`, for each process (measured). When a server has started, the resolver inspects the process below
its launcher: its program, its script, and the folders that the launcher put in front of PATH. If these are certain,
it saves them, and the next starts execute the program directly.
An entry is valid until one of its files changes; without an exact version also at most a day. An entry holds neither
the server's arguments nor its environment, only the variables that the launchers themselves add.
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
from toolhub.spawn.launchers.command_lines import LauncherCommand, is_launcher, parse_launcher_command
from toolhub.spawn.supervisor import children

FORMAT = 1
MAX_BYTES = 1024 * 1024
MAX_ENTRIES = 200
# npx asks the registry for a version that is not exact. Once a day is enough to get new ones.
UNPINNED_S = FAILED_S = 24 * 3600.0
# One failure may be the server's own. After two failures the launcher is used for a day.
MOST_FAILURES = 2
# Launchers add these variables; with them a program finds the package manager that started it.
_ADDED = ("NODE", "npm_execpath", "npm_node_execpath", "npm_config_user_agent", "UV")
_MAX_DEPTH = 6

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Command:
    """A command with its complete environment and its working directory (None: the hub's)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None


@dataclass(frozen=True)
class Resolution:
    """What a launcher executed. path: the folders that it put in front of PATH. files: size, time, inode by path."""

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
        return all(_fingerprint(path) == fingerprint for path, fingerprint in self.files.items())

    def recent_failures(self, now: float) -> int:
        return self.failures if 0 <= now - self.at < FAILED_S else 0


class Resolver:
    """The saved commands of launchers, in one file. Its own failures never fail a start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Resolution] | None = None

    def resolve(self, command: Command) -> Command | None:
        """Return the command to execute instead of a launcher; None if it is not known."""
        launch = parse_launcher_command(command.argv)
        if launch is None:
            return None
        found = self._all().get(_key(launch, command))
        if found is None or not found.is_current(time.time()):
            return None
        path = os.pathsep.join([*found.path, *filter(None, [command.env.get("PATH")])])
        added = {name: value for name, value in found.env.items() if name not in command.env}
        return Command([*found.argv, *launch.arguments], {**command.env, **added, "PATH": path}, command.cwd)

    def record(self, command: Command, pid: int | None) -> None:
        """Inspect a server that has started, and save what its launcher executed. pid: of the launcher."""
        launch = parse_launcher_command(command.argv)
        if launch is None or pid is None:
            return
        key, now = _key(launch, command), time.time()
        before = self._all().get(key)
        failures = before.recent_failures(now) if before else 0
        if failures >= MOST_FAILURES or (before is not None and before.is_current(now)):
            return
        try:
            found = _inspect(launch, command, pid)
        except (OSError, ValueError) as exc:
            logger.debug("cannot inspect what %s (pid %d) runs: %s", launch.launcher, pid, exc)
            return
        if found is not None:
            self._save(key, dataclasses.replace(found, at=now, failures=failures))

    def record_failure(self, command: Command) -> None:
        """Record that the command that was executed instead of the launcher did not start."""
        launch = parse_launcher_command(command.argv)
        if launch is not None:
            key, now = _key(launch, command), time.time()
            before = self._all().get(key)
            self._save(key, Resolution(now, failures=1 + (before.recent_failures(now) if before else 0)))

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
            logger.debug("cannot use %s: %r", self._path, exc)
        return {}

    def _save(self, key: str, found: Resolution) -> None:
        """Save an entry. Entries that another hub has written meanwhile are kept."""
        known = sorted((self._read() | {key: found}).items(), key=lambda item: item[1].at)[-MAX_ENTRIES:]
        self._known = dict(known) | {key: found}
        document = {"format": FORMAT, "commands": {key: dataclasses.asdict(entry) for key, entry in known}}
        try:
            write_private(self._path, json.dumps(document).encode())
        except OSError as exc:
            logger.debug("cannot write %s: %s", self._path, exc)


def _key(launch: LauncherCommand, command: Command) -> str:
    """Return a digest of everything that selects the program. A digest, because the words may contain secrets."""
    env = {name: value for name, value in command.env.items() if _selects_program(name)}
    folder = launch.project_folder(os.path.abspath(command.cwd or os.curdir))
    identity = json.dumps([launch.head, folder, env], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _selects_program(name: str) -> bool:
    return name in ("PATH", "HOME") or name.lower().startswith(("npm_config_", "uv_", "xdg_"))


def _from_wire(entry: dict[str, Any]) -> Resolution:
    found = Resolution(**entry)
    texts = [*found.argv, *found.path, *found.env, *found.env.values(), *found.files]
    if not all(isinstance(text, str) for text in texts) or not isinstance(found.at + found.failures, float):
        raise ValueError("an entry is malformed")
    return found


# --- inspecting processes ---------------------------------------------------------------------------------------------


def _inspect(launch: LauncherCommand, command: Command, pid: int) -> Resolution | None:
    """Return what runs below the launcher `pid`; None if that is not certain.

    Raises OSError if a process has ended or there is no /proc.
    """
    server = _server_below(pid)
    if server is None:
        return None
    words, env = _words(server, "cmdline"), _environment(server)
    count = len(launch.arguments)
    head, arguments = words[: len(words) - count], words[len(words) - count :]
    program = shutil.which(head[0], path=env.get("PATH")) if head else None
    prepended = _prepended_folders(env.get("PATH", ""), command.env.get("PATH", ""))
    if program is None or tuple(arguments) != launch.arguments or prepended is None:
        return None
    script = head[-1] if len(head) > 1 else program
    is_moved = not os.path.samefile(f"/proc/{server}/cwd", command.cwd or os.curdir)
    # The program keeps the path of its command line: Python finds its virtual environment by that path.
    if is_moved or not os.path.samefile(program, f"/proc/{server}/exe") or not os.path.isabs(script):
        return None
    return Resolution(
        0.0,
        argv=[program, *head[1:]],
        path=prepended,
        env={name: env[name] for name in _ADDED if name in env},
        files={path: found for path in _files(program, script) if (found := _fingerprint(path))},
        is_pinned=launch.is_pinned,
    )


def _server_below(pid: int) -> int | None:
    """Return the first process below the launcher that is no launcher itself; None if that is not certain."""
    for _ in range(_MAX_DEPTH):
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


def _prepended_folders(path: str, original: str) -> list[str] | None:
    """Return the folders that `path` has in front of the original PATH; None if it was changed in another way."""
    if not path.endswith(original):
        return None
    return [folder for folder in path.removesuffix(original).split(os.pathsep) if os.path.isdir(folder)]


def _files(program: str, script: str) -> list[str]:
    """Return the files that change with the installed version. npm gives all files of all versions the same time."""
    real = os.path.realpath(script)
    above = (os.path.join(folder, "package.json") for folder in map(str, Path(real).parents))
    return [program, script, *next(([path] for path in above if os.path.isfile(path)), [])]


def _fingerprint(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino]
