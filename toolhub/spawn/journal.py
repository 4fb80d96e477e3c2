"""A journal of the processes that a hub started, so that the next hub can kill what a crash left behind.

One file per hub, `<pid>-<start time>-<number>.jsonl`, with one line per child. A process is identified by its pid *and*
its start time. Pids are reused, and killing an unrelated process would be worse than a leak.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolhub.private_files import check_private_folder, read_private
from toolhub.spawn.cgroup import Cgroup, recorded_cgroup
from toolhub.spawn.supervisor import descendants, start_time

logger = logging.getLogger(__name__)
# A line has about 60 bytes, and a hub starts a few processes per task.
_LARGEST_JOURNAL = 256 << 20
_numbers = itertools.count(1)


class Journal:
    """The record of one hub's children. Use `open_journal()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_private_folder(path.parent)
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o600)
        except OSError as exc:
            logger.warning(
                "cannot write the journal %s (%s); if this hub crashes, the next one cannot kill its processes",
                path,
                exc,
            )

    def make_cgroup(self) -> Cgroup | None:
        """Make a cgroup for this hub's children if possible, and record it."""
        cgroup = Cgroup.create(self.path.stem)
        if cgroup is not None:
            self._append({"cgroup": str(cgroup.path)})
        return cgroup

    def record(self, pid: int, started: str | None, name: str) -> None:
        """Record that a child was started."""
        self._append({"pid": pid, "start_time": started, "name": name})

    def forget(self, pid: int) -> None:
        """Record that a child and everything below it have ended."""
        self._append({"gone": pid})

    def _append(self, entry: dict[str, object]) -> None:
        if self._fd is None:
            return
        try:
            os.write(self._fd, json.dumps(entry).encode() + b"\n")
        except OSError as exc:  # a full disk must not stop the tools
            logger.warning("cannot write to the journal %s: %s", self.path, exc)

    def close(self) -> None:
        """Remove the file. Call it when all children have ended."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self.path.unlink(missing_ok=True)


@contextmanager
def open_journal(directory: Path) -> Iterator[Journal]:
    """Kill what dead hubs left behind, then hold a journal for this hub. Leaving the block removes it."""
    sweep(directory)
    # Numbered, so that of several hubs in one process each removes only its own file.
    journal = Journal(directory / f"{os.getpid()}-{start_time(os.getpid())}-{next(_numbers)}.jsonl")
    try:
        yield journal
    finally:
        journal.close()


def sweep(directory: Path) -> list[int]:
    """Kill the recorded children of hubs that have ended; return the killed pids.

    Reads only files that no other user could have written. Otherwise a hub that runs as root would kill any process
    that another user names.
    """
    killed: list[int] = []
    try:
        check_private_folder(directory)
    except (FileNotFoundError, NotADirectoryError):  # `Journal` reports it when that matters
        return killed
    except OSError as exc:
        logger.warning("processes that an earlier hub left running are not killed: %s", exc)
        return killed
    for path in sorted(directory.glob("*-*.jsonl")):
        hub_pid, hub_started = path.stem.split("-")[:2]
        if hub_pid.isdigit() and start_time(int(hub_pid)) == hub_started:
            continue  # that hub still runs
        try:
            killed += _sweep_one(path)
            path.unlink(missing_ok=True)
        except OSError as exc:
            logger.warning("processes recorded in the journal %s are not killed: %s", path, exc)
    if killed:
        logger.warning("killed %d processes that an earlier hub left behind: %s", len(killed), killed)
    return killed


def _sweep_one(path: Path) -> list[int]:
    killed: list[int] = []
    children: dict[int, str] = {}
    for line in read_private(path, limit=_LARGEST_JOURNAL).decode(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if "cgroup" in entry:
                cgroup = recorded_cgroup(entry["cgroup"])
                killed += cgroup.remove() if cgroup is not None else []
            elif "gone" in entry:
                children.pop(int(entry["gone"]), None)
            else:
                children[int(entry["pid"])] = str(entry["start_time"])
        except (ValueError, KeyError, TypeError):
            continue  # a line cut short by the crash
    for pid, started in children.items():
        if start_time(pid) == started:
            killed += _kill_tree(pid)
    return killed


def _kill_tree(pid: int) -> list[int]:
    victims = [pid, *descendants(pid)]
    for victim in victims:
        try:
            os.kill(victim, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    return victims
