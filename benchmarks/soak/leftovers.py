"""What a soak makes outside its folder: cgroups `toolhub-soak-PID`, and mounts of that name. PID is the soak's.

A soak removes its own at its end. If it was killed, the next soak removes them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

CGROUPS = Path("/sys/fs/cgroup")
FOLDER_PREFIX = "soak-"
"""The beginning of the name of a soak's temporary folder."""
MOUNTS = Path("/proc/self/mounts")
_NAME = re.compile(r"toolhub-soak-(\d+)")


def name(pid: int) -> str:
    """The name of this soak's cgroups, and the source of its mounts."""
    return f"toolhub-soak-{pid}"


class Leftovers(NamedTuple):
    cgroups: list[Path]
    mounts: list[Path]
    """The newest first: of two on one folder, the newer hides the older."""


def find(pid: int) -> Leftovers:
    """What the soak with this pid has made, or left."""
    return _find().get(pid, Leftovers([], []))


def _find() -> dict[int, Leftovers]:
    found: dict[int, Leftovers] = {}
    for path in CGROUPS.glob("**/toolhub-soak-*"):
        if match := _NAME.fullmatch(path.name):
            found.setdefault(int(match[1]), Leftovers([], [])).cgroups.append(path)
    lines = MOUNTS.read_text().splitlines() if MOUNTS.exists() else []
    for line in reversed(lines):
        source, folder = line.split()[:2]
        if match := _NAME.fullmatch(source):
            found.setdefault(int(match[1]), Leftovers([], [])).mounts.append(Path(folder))
    return found


def remove_cgroups(pid: int) -> None:
    """Remove the cgroups of the soak with this pid. One that still has a process in it stays."""
    for group in find(pid).cgroups:
        with suppress(OSError):
            group.rmdir()


def remove_mounts(pid: int) -> None:
    for folder in find(pid).mounts:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def sweep() -> None:
    """Remove what soaks left that were killed: their cgroups, their mounts, and the folders that these were in."""
    for pid, left in _find().items():
        if psutil.pid_exists(pid):
            continue
        remove_cgroups(pid)
        remove_mounts(pid)
        for folder in {mount.parent for mount in left.mounts if mount.parent.name.startswith(FOLDER_PREFIX)}:
            shutil.rmtree(folder, ignore_errors=True)


def own_cgroup(controller: str) -> Path:
    """This process's own group."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if controller in kinds.split(","):
            return CGROUPS / controller / path.lstrip("/")
    return CGROUPS / controller


def fault_cgroup(controller: str) -> Path:
    """The group in which a fault limits its victim."""
    return CGROUPS / controller / name(os.getpid())
