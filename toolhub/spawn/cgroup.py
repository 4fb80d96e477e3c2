"""A cgroup v2 around everything that a hub starts. The kernel kills all its members with one write.

It adds to the supervisor and does not replace it. When the hub, the supervisor and the shims are killed together, the
next hub kills what is left through the cgroup. Creating one needs write access to the hub's own cgroup (root, or
systemd's `Delegate=yes`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

PREFIX = "toolhub-"
# Killed members leave the cgroup within milliseconds; until then it cannot be removed.
_REMOVE_S, _PAUSE_S = 0.5, 0.005


class Cgroup:
    """One cgroup directory that this project made."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<Cgroup {self.path}>"

    @classmethod
    def create(cls, name: str) -> Cgroup | None:
        """Make a cgroup below this process's own; None if that is not possible."""
        parent = own_directory()
        if parent is None:
            return None
        path = parent / f"{PREFIX}{name}"
        try:
            path.mkdir()
        except OSError:
            return None
        if not (path / "cgroup.kill").exists():  # before Linux 5.14
            path.rmdir()
            return None
        return cls(path)

    def adopt(self, pid: int) -> None:
        """Move a process into the cgroup. Everything that it forks from now on belongs to the cgroup too."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError:
            pass  # it has ended, or write access is gone: the supervisor works without a cgroup

    def remove(self) -> list[int]:
        """Kill all members and remove the directory; return the pids that were there."""
        try:
            members = [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]
            if members:
                (self.path / "cgroup.kill").write_text("1")
        except OSError:
            return []
        deadline = time.monotonic() + _REMOVE_S
        while time.monotonic() < deadline:
            try:
                self.path.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(_PAUSE_S)
        return members


def recorded_cgroup(path: str) -> Cgroup | None:
    """Return the cgroup that a journal names, if this project made it and it still exists."""
    mount = _mount_point()
    candidate = Path(os.path.normpath(path))
    if mount is None or mount not in candidate.parents or not candidate.name.startswith(PREFIX):
        return None
    return Cgroup(candidate) if candidate.is_dir() else None


def own_directory() -> Path | None:
    """Return the directory of this process's cgroup v2; None if there is none."""
    mount = _mount_point()
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    relative = next((line[3:] for line in lines if line.startswith("0::")), None)
    return mount / relative.lstrip("/") if mount is not None and relative is not None else None


def _mount_point() -> Path | None:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    return None
