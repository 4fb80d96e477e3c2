"""Files of the host: those that a model may read, and those that it leaves.

A path is resolved first, links included, and must then be below a configured folder. It is opened component by
component from that folder, without following links. If a component was replaced by a link in between, the file is
refused.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import anyio
from anyio import to_thread

# Large enough for few thread switches, small enough for hundreds of reads at a time.
PIECE_BYTES = 256 * 1024
# The limit for a file name on the usual file systems.
MAX_NAME_BYTES = 255
# For closing and deleting one file. A network file system may hang.
CLEANUP_TIMEOUT = 5.0

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_UNUSUAL = re.compile(r"[^\w .,+=@()\[\]~#%-]")
_DOTS = re.compile(r"\.{2,}")


class ReadableFolders:
    """The folders of the host whose files may be read. Methods block."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Raises ValueError if one of them is not a directory."""
        given = [folders] if isinstance(folders, str) else folders
        if "" in given:  # an unset variable; it would mean the hub's own working directory
            raise ValueError("local_dirs: an entry is empty; name a folder or leave it out")
        self.roots = tuple(os.path.realpath(folder) for folder in given)
        for root in self.roots:
            if not os.path.isdir(root):
                raise ValueError(f"local_dirs: {root!r} is not a directory")

    def __repr__(self) -> str:
        return f"<ReadableFolders {', '.join(self.roots) or 'none'}>"

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading. A relative path is looked up in each folder.

        Raises FileNotFoundError, IsADirectoryError for anything but a regular file, PermissionError for a path outside
        the folders, another OSError if it cannot be read.
        """
        if not self.roots:
            raise PermissionError("no local files may be read here: the option 'local_dirs' of this server is not set")
        missing: FileNotFoundError | None = None
        for root in self.roots:
            try:
                real = os.path.realpath(os.path.join(root, path))
                os.fsencode(real)
            except ValueError as exc:  # a character that no file name can have, such as a null
                raise FileNotFoundError(f"{path!r} does not exist") from exc
            if real != root and not real.startswith(root.rstrip("/") + "/"):
                continue
            try:
                return _open_below(root, real)
            except (FileNotFoundError, NotADirectoryError):
                missing = FileNotFoundError(f"{path} does not exist")
        raise missing or PermissionError(
            f"it is outside the directories that may be read ({', '.join(self.roots)}; option 'local_dirs')"
        )


def _open_below(root: str, real: str) -> BinaryIO:
    parts = [part for part in os.path.relpath(real, root).split("/") if part != "."]
    if not parts:
        raise IsADirectoryError(f"{real} is a directory")
    folder = os.open(root, FOLDER)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = deeper
        # Checked before it is opened: opening a device may have effects, opening a pipe may wait.
        _check_regular(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False), real)
        file = os.open(parts[-1], SOURCE, dir_fd=folder)
    finally:
        os.close(folder)
    stream = os.fdopen(file, "rb", buffering=0)
    try:
        _check_regular(os.fstat(file), real)
    except OSError:
        stream.close()
        raise
    return stream


def _check_regular(found: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise PermissionError(f"{path!r} has just become a link")
    if not stat.S_ISREG(found.st_mode):
        raise IsADirectoryError(f"{path} is {'a directory' if stat.S_ISDIR(found.st_mode) else 'not a regular file'}")


async def read_pieces(stream: BinaryIO) -> AsyncGenerator[bytes, None]:
    while piece := await to_thread.run_sync(stream.read, PIECE_BYTES):
        yield piece


class OutputDir:
    """The folder of the host for files from sandboxes: `tmpfiles` below the logs."""

    def __init__(self, logs_dir: str) -> None:
        self.folder = Path(os.path.abspath(logs_dir), "tmpfiles")

    def __repr__(self) -> str:
        return f"<OutputDir {self.folder}>"

    async def save(self, name: str, pieces: AsyncIterator[bytes]) -> str:
        """Write a whole file, replacing one of that name, and return its path. Raises OSError.

        name: from `saved_name`. If `pieces` raises, the exception passes through and no file is left.
        """
        draft = await to_thread.run_sync(_Draft, self.folder, name)
        try:
            async for piece in pieces:
                await to_thread.run_sync(draft.write, piece)
            await to_thread.run_sync(draft.publish)
        finally:
            with anyio.move_on_after(CLEANUP_TIMEOUT, shield=True):
                await to_thread.run_sync(draft.close, abandon_on_cancel=True)
        return str(self.folder / name)


class _Draft:
    """A file that gets its name when it is complete. Methods block."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._draft = f".{secrets.token_hex(8)}.part"
        self._folder = os.open(folder, FOLDER)
        try:
            self._stream = os.fdopen(os.open(self._draft, DRAFT, 0o666, dir_fd=self._folder), "wb")
        except OSError:
            os.close(self._folder)
            raise

    def write(self, piece: bytes) -> None:
        self._stream.write(piece)

    def publish(self) -> None:
        self._stream.close()
        # Replaces a link of that name and does not follow it.
        os.replace(self._draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def close(self) -> None:
        with ExitStack() as rest:
            rest.callback(os.close, self._folder)
            rest.callback(self._unlink)
            self._stream.close()

    def _unlink(self) -> None:
        try:
            os.unlink(self._draft, dir_fd=self._folder)
        except FileNotFoundError:
            pass  # published


def saved_name(sandbox_id: str, name: str) -> str:
    """Return `sandbox_<id>_<name>` as one safe component of a path: at most 255 bytes, with the extension."""
    whole = f"sandbox_{_plain(sandbox_id)}_{_plain(name) or 'downloaded_file'}"
    stem, extension = os.path.splitext(whole)
    extension = _first_bytes(extension, MAX_NAME_BYTES // 4)
    return _first_bytes(stem, MAX_NAME_BYTES - len(extension.encode())) + extension


def _plain(name: str) -> str:
    return _DOTS.sub("_", _UNUSUAL.sub("_", name.strip()))


def _first_bytes(text: str, count: int) -> str:
    return text.encode()[:count].decode(errors="ignore")
