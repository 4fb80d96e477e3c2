"""Appends lines to a file; whatever becomes of the disk, the caller goes on."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from pathlib import Path

# What waits for a full disk to have room again; a long task writes less than this.
BACKLOG_BYTES = 64 * 2**20

logger = logging.getLogger(__name__)


class LineWriter:
    """One file, opened for this process alone. Each line is one `write`, so a killed process loses at most the last.

    Nothing is synced: a line outlives the process, not a power cut. A line the disk refused is kept and written before
    the next one, so that the file never has a gap. There is one warning when that begins.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        """descriptor: None for a file that could not be made; nothing is written then."""
        self.path = path
        self._lock = threading.Lock()  # steps of tools may come from other threads
        self._fd: int | None = descriptor
        self._waiting = bytearray()
        self._warned = False
        self.written = 0

    def __repr__(self) -> str:
        state = "closed" if self._fd is None else f"{len(self._waiting)} bytes waiting"
        return f"<LineWriter {self.path} {state}>"

    def append(self, line: bytes) -> None:
        """Write a line, which ends with a newline and has no other. Never raises OSError."""
        with self._lock:
            if self._fd is None:
                return
            self._waiting += line
            try:
                self._flush(self._fd)
            except OSError as exc:
                self._warn(exc)
                if len(self._waiting) > BACKLOG_BYTES:
                    self._give_up()

    def _flush(self, descriptor: int) -> None:
        while self._waiting:
            count = os.write(descriptor, self._waiting)
            self.written += count
            del self._waiting[:count]

    def _give_up(self) -> None:
        logger.warning("log %s: given up; it ends here, the task goes on", self.path)
        self._waiting.clear()
        self.close()

    def _warn(self, exc: OSError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("log %s cannot be written (%s): the task goes on, but may not be resumable", self.path, exc)

    def cut(self, size: int) -> None:
        """Remove what follows the first `size` bytes: the line a killed process was writing. Raises OSError."""
        if self._fd is not None and (rest := os.fstat(self._fd).st_size - size) > 0:
            logger.warning("log %s: its last %d bytes are no whole record and are removed", self.path, rest)
            os.ftruncate(self._fd, size)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def create(folder: Path, stem: str, suffix: str) -> LineWriter:
    """A new file, for its owner's eyes only; another task of the same second gets a number. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = 1
    while True:
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        except FileExistsError:
            number += 1
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return LineWriter(path, descriptor)


def reopen(path: Path) -> LineWriter:
    """An existing file, to append to. Raises OSError; BlockingIOError while another process writes it."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return LineWriter(path, descriptor)
