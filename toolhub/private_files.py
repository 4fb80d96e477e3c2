"""Small files that only this user may read or write.

They are replaced whole. They are read only if no other user could have written them.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def default_state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of toolhub's state, as the XDG base directory specification says."""
    base = environ.get("XDG_STATE_HOME", "")
    # The specification says that a relative path is invalid and must be ignored.
    if os.path.isabs(base):
        return Path(base, "toolhub")
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(home, ".local", "state", "toolhub")


def check_private_folder(folder: Path) -> None:
    """Raise PermissionError if another user may have written into this folder, OSError if it does not exist."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder (a symbolic link to a folder is not followed)")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(f"other users can write to {folder}; run: chmod go-w {shlex.quote(str(folder))}")


def read_private(path: Path, *, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Raises OSError if it cannot be read or is larger, PermissionError if another user may have written it.
    """
    with _regular_file(path, os.O_NOFOLLOW, limit) as (file, found):
        if found.st_uid != os.geteuid() or found.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(f"{path} belongs to another user, or other users can write to it; it is not used")
        return file.read(limit)


def read_secret(path: Path, *, limit: int) -> bytes:
    """Return the content of a file that only this user can read. Symbolic links are followed.

    Raises OSError if it cannot be read or is larger than `limit` bytes, PermissionError if other users can read it.
    """
    with _regular_file(path, 0, limit) as (file, found):
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user, who can read it")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PermissionError(
                f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so other users can read or change it; "
                f"run: chmod 600 {shlex.quote(str(path))}"
            )
        return file.read(limit)


@contextmanager
def _regular_file(path: Path, flags: int, limit: int) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    # Non-blocking, because opening a named pipe would wait for a writer for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        found = os.fstat(fd)  # before open(), which refuses a folder without saying its name
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            raise OSError(f"{path} is not a regular file of at most {limit} bytes")
        with open(fd, "rb", closefd=False) as file:
            yield file, found
    finally:
        os.close(fd)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, with mode 0600. Creates its folder with mode 0700.

    It does not sync: after a power failure the file may be empty, and readers of such files treat that as missing.
    Raises OSError if it cannot be written.
    """
    import tempfile  # takes 10 ms, which those who only read would pay too

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def prune(folder: Path, *, most: int) -> None:
    """Remove the oldest files beyond `most`, also temporary files of processes that died while writing."""
    with os.scandir(folder) as listing:
        entries = list(listing)
    if len(entries) > most:
        entries.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime)
        for entry in entries[:-most]:
            os.unlink(entry.path)
