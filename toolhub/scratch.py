"""Temporary folders that are removed even if the process that made them was killed.

Each folder is locked by the process that made it, and the lock ends with that process, however it ends. Each start of a
browser and of a demo removes the folders that are not locked. A process id in the name would not do: ids are used
again, and differ between containers that share the temporary directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "toolhub-scratch-"


def temporary_folders() -> list[Path]:
    """Return the folders in which scratch folders may be: TMPDIR, and /tmp for what does not work there."""
    return list(dict.fromkeys([Path(tempfile.gettempdir()), Path("/tmp")]))  # noqa: S108  # mkdtemp makes what is in it


class Scratch:
    """A folder for one purpose. `remove()` it at the end. It and `sweep()` block on the disk."""

    def __init__(self, purpose: str, parent: Path | None = None) -> None:
        """parent: one of `temporary_folders()`; None: the first."""
        self.path, self._lock = _make(f"{PREFIX}{purpose}-", parent)

    def __repr__(self) -> str:
        return f"<Scratch {self.path}>"

    def remove(self) -> None:
        """Remove the folder. Idempotent. What cannot be removed now is left to a later sweep."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def sweep() -> None:
    """Remove the folders of processes that have ended, except those of other users."""
    for folder in (found for parent in temporary_folders() for found in parent.glob(f"{PREFIX}*")):
        try:
            lock = _lock(folder)
        except OSError:
            continue  # locked, or gone by now
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _make(prefix: str, parent: Path | None) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = _lock(folder)
        except OSError:
            continue  # a sweep removed it first
        if folder.exists():
            return folder, lock
        os.close(lock)


def _lock(folder: Path) -> int:
    """Return a descriptor that locks the folder. Raises OSError if it is locked already or not a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
