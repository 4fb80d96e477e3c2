"""Results of read-only tools on disk, for other tasks, attempts and hubs: one SQLite file.

Several hubs may use one file. A result is used while it is fresh; beyond `max_bytes` the least recently used ones are
removed. Nothing here ever fails a call. A damaged file, a full disk or missing rights switch the store off, with one
line in the log; a file that another hub has locked counts as a miss.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from toolhub import __version__
from toolhub.model import Json, SharedResultsStatistics
from toolhub.private_files import check_private_folder

FILE = "shared_results.sqlite"
# Another version of toolhub must not misread the file.
FORMAT = 1
# A result larger than this part of the store is not kept: it would evict too many others.
_LARGEST_PART = 16
# How long one look-up waits for another hub that writes.
_LOCKED_S = 0.25
# Times of use are written this seldom, because each is a write.
_USED_S = 60.0
# The size is measured after so many new results.
_MEASURE_EVERY = 32
# Removing more than needed spares the next ones the work.
_KEPT_PART = 0.9
_SCHEMA = """
CREATE TABLE IF NOT EXISTS results
    (key BLOB PRIMARY KEY, result TEXT NOT NULL, size INTEGER NOT NULL, made REAL NOT NULL, used REAL NOT NULL);
CREATE INDEX IF NOT EXISTS by_use ON results (used, size);
"""

logger = logging.getLogger(__name__)
T = TypeVar("T")


class ResultStore:
    """The store of one hub. clock: Unix time, because several hubs compare it."""

    def __init__(self, folder: Path, *, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.path = folder / FILE
        self.is_on = True
        self._max_bytes = max_bytes
        self._clock = clock
        self._hits = self._misses = 0
        self._added = 0
        self._connection: sqlite3.Connection | None = None
        self._limiter: anyio.CapacityLimiter | None = None

    def __repr__(self) -> str:
        return f"<ResultStore {self.path} {'on' if self.is_on else 'off'} hits={self._hits}>"

    async def get(self, key: str, *, ttl: float) -> Json | None:
        """Return a result that is not older than `ttl` seconds."""
        found = await self._in_thread(self._get, _digest(key), ttl)
        if found is None:
            self._misses += 1
            return None
        self._hits += 1
        return found

    async def put(self, key: str, result: Json, *, secrets: frozenset[str]) -> None:
        """Keep a result, unless it is too large or has a secret in it."""
        await self._in_thread(self._put, _digest(key), result, secrets)

    async def aclose(self) -> None:
        await self._in_thread(self._close)
        self.is_on = False

    def statistics(self) -> SharedResultsStatistics:
        return SharedResultsStatistics(self._hits, self._misses, self.is_on)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T | None:
        """Run the work in a thread, one at a time; None if the store cannot be used."""
        if not self.is_on:
            return None
        self._limiter = self._limiter or anyio.CapacityLimiter(1)
        try:
            return await anyio.to_thread.run_sync(work, *arguments, limiter=self._limiter)
        except (sqlite3.Error, OSError, ValueError) as exc:
            if isinstance(exc, sqlite3.OperationalError) and "locked" in str(exc):
                return None
            if self.is_on:
                self.is_on = False
                logger.error("results are not shared any more: %s cannot be used: %s", self.path, exc)
            return None

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _get(self, key: bytes, ttl: float) -> Json | None:
        db, now = self._open(), self._clock()
        row = db.execute("SELECT result, made, used FROM results WHERE key = ?", (key,)).fetchone()
        if row is None or not 0 <= now - row[1] <= ttl:
            return None
        result = json.loads(row[0])
        if not isinstance(result, dict):
            raise ValueError("a result in it is no object")
        if now - row[2] > _USED_S:
            with db:
                db.execute("UPDATE results SET used = ? WHERE key = ?", (now, key))
        return result

    def _put(self, key: bytes, result: Json, secrets: frozenset[str]) -> None:
        try:
            text = json.dumps(result, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return
        size = len(text) + len(key)
        if size > self._max_bytes // _LARGEST_PART or any(json.dumps(secret)[1:-1] in text for secret in secrets):
            return
        db, now = self._open(), self._clock()
        with db:
            db.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)", (key, text, size, now, now))
            self._added += 1
            if self._added % _MEASURE_EVERY == 1 or size * _MEASURE_EVERY > self._max_bytes // _LARGEST_PART:
                self._make_room(db)

    def _make_room(self, db: sqlite3.Connection) -> None:
        (size,) = db.execute("SELECT coalesce(sum(size), 0) FROM results").fetchone()
        if size <= self._max_bytes:
            return
        excess = size - int(self._max_bytes * _KEPT_PART)
        for row, part in db.execute("SELECT rowid, size FROM results ORDER BY used").fetchall():
            db.execute("DELETE FROM results WHERE rowid = ?", (row,))
            excess -= part
            if excess <= 0:
                return

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        os.makedirs(self.path.parent, mode=0o700, exist_ok=True)
        check_private_folder(self.path.parent)
        # SQLite gives its files the mode of the database.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        db = sqlite3.connect(self.path, timeout=_LOCKED_S, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise ValueError(f"it has format {version}, and this version of toolhub has {FORMAT}: remove it")
            db.executescript(f"{_SCHEMA} PRAGMA user_version = {FORMAT};")
        except BaseException:
            db.close()
            raise
        self._connection = db
        return db

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _digest(key: str) -> bytes:
    # The servers of toolhub change with it.
    return hashlib.blake2b(f"{__version__} {key}".encode("utf-8", "surrogatepass"), digest_size=20).digest()
