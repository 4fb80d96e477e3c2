"""A full-text index of a folder in one SQLite file. Everything here blocks and runs in threads.

A file is known by path, time of change and size. A refresh reads only new and changed files, in batches of one
transaction each, so a search meanwhile sees whole files, old or new. Several processes may use and refresh one index:
SQLite lets one write at a time, and each checks again what is left to do when it may write.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolhub_servers.search.backends.local.documents import READERS, DocumentUnreadable, read_documents
from toolhub_servers.search.backends.local.words import join_ideographs, separate_ideographs

logger = logging.getLogger(__name__)

# The version of the schema. A file with another version is deleted and built again.
VERSION = 1
# Files per transaction: enough to be fast, and few enough that other processes wait only a moment.
BATCH = 50
# How long to wait while another process writes a batch with a large file.
BUSY_TIMEOUT = 30.0
# FTS5 allows at most 64. A Chinese character counts as a word.
SNIPPET_WORDS = 60
SNIPPET_CHARACTERS = 500

SCHEMA = """
CREATE TABLE files (path TEXT PRIMARY KEY, changed_ns INTEGER NOT NULL, size INTEGER NOT NULL);
CREATE TABLE documents (id INTEGER PRIMARY KEY, path TEXT NOT NULL, part INTEGER NOT NULL, link TEXT, date TEXT);
CREATE INDEX documents_by_path ON documents (path);
CREATE VIRTUAL TABLE entries USING fts5(title, body, tokenize = "porter unicode61 remove_diacritics 2");
INSERT INTO entries (entries, rank) VALUES ('rank', 'bm25(4.0, 1.0)');
"""

BEST = "SELECT rowid FROM entries WHERE entries MATCH ? ORDER BY rank, rowid LIMIT ? OFFSET ?"
# JSON documents write dates in many ways. Only dates that begin like 2026-01-31 are used.
BEST_SINCE = """
SELECT entries.rowid FROM entries JOIN documents ON documents.id = entries.rowid JOIN files USING (path)
WHERE entries MATCH ? AND CASE WHEN date GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'
THEN date >= ? ELSE changed_ns >= ? END
ORDER BY entries.rank, entries.rowid LIMIT ? OFFSET ?
"""

Stamp = tuple[int, int]
"""Time of change in nanoseconds, and size in bytes."""


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """path: relative to the folder, with slashes. part, link and date: as in Document."""

    path: str
    part: int
    link: str | None
    date: str | None
    title: str
    snippet: str


@dataclass(slots=True)
class Progress:
    """The progress of a refresh, readable from any thread. Set `stop` to end the refresh after the current file."""

    done: int = 0
    total: int = 0
    skipped: int = 0
    """The number of files that could not be read."""
    stop: threading.Event = field(default_factory=threading.Event)


class Index:
    """`refresh` may run in one thread at a time, `find` in any number."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder = folder
        self.file = file

    def __repr__(self) -> str:
        return f"<Index {self.file} of {self.folder}>"

    def refresh(self, progress: Progress) -> None:
        """Update the index to the files of the folder. Raises OSError, sqlite3.Error."""
        if not self.folder.is_dir():  # an unmounted disk must not empty the index
            raise FileNotFoundError(f"{self.folder} is not a directory")
        present = dict(_files(self.folder))
        with self._writing() as database:
            known = {path: (changed, size) for path, changed, size in database.execute("SELECT * FROM files")}
            todo = [path for path, stamp in present.items() if known.get(path) != stamp]
            gone = [path for path in known if path not in present]
            progress.done, progress.total, progress.skipped = 0, len(todo), 0
            for start in range(0, len(gone), BATCH):
                with _transaction(database):
                    for path in gone[start : start + BATCH]:
                        _forget(database, path)
            for start in range(0, len(todo), BATCH):
                with _transaction(database):
                    for path in todo[start : start + BATCH]:
                        if progress.stop.is_set():
                            return
                        self._read(database, path, present[path], progress)

    def find(self, match: str, *, limit: int, offset: int = 0, since: datetime | None = None) -> list[IndexedDocument]:
        """Return documents that match an FTS5 expression, the best first. Raises sqlite3.Error.

        since: only documents of that time or later, by the document's date, or else by the time of the file's change.
        """
        address = f"file:{quote(str(self.file))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)) as database:
            database.execute("BEGIN")  # both steps see the same state, also during a refresh
            # In two steps, because SQLite would make snippets of all matches before it keeps the best.
            best = database.execute(*_selection(match, limit, offset, since))
            return [_found(database, match, row) for (row,) in best.fetchall()]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            database = self._open()
        except sqlite3.DatabaseError as exc:
            if isinstance(exc, sqlite3.OperationalError):
                raise  # busy, full, not allowed: the file itself may be good
            logger.warning("index %s cannot be used (%s) and is built anew", self.file, exc)
            self._throw_away()
            database = self._open()
        with closing(database):
            yield database

    def _open(self) -> sqlite3.Connection:
        if not self.file.exists():
            _create(self.file)
        database = sqlite3.connect(self.file, timeout=BUSY_TIMEOUT, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = NORMAL")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise sqlite3.DatabaseError(f"it is of version {version}")
        except BaseException:
            database.close()
            raise
        return database

    def _throw_away(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self.file.with_name(self.file.name + ending).unlink(missing_ok=True)

    def _read(self, database: sqlite3.Connection, path: str, stamp: Stamp, progress: Progress) -> None:
        """Replace the index entries of a file, unless another process has just done so."""
        known = database.execute("SELECT changed_ns, size FROM files WHERE path = ?", (path,)).fetchone()
        if known != stamp:
            _forget(database, path)
            try:
                if not _is_inside(self.folder, self.folder / path):
                    raise DocumentUnreadable(f"{path} leads out of {self.folder}")
                for document in read_documents(self.folder / path):
                    added = database.execute(
                        "INSERT INTO documents (path, part, link, date) VALUES (?, ?, ?, ?)",
                        (path, document.part, document.link, document.date),
                    )
                    entry = (added.lastrowid, separate_ideographs(document.title), separate_ideographs(document.text))
                    database.execute("INSERT INTO entries (rowid, title, body) VALUES (?, ?, ?)", entry)
            except (OSError, DocumentUnreadable) as exc:
                logger.warning("not indexed: %s", exc)
                progress.skipped += 1
            database.execute("INSERT INTO files VALUES (?, ?, ?)", (path, *stamp))
        progress.done += 1


def _create(file: Path) -> None:
    """Make an empty index, unless another process is faster.

    The file gets its name when it is complete. SQLite fails, and does not wait, while another changes the journal mode.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(sqlite3.connect(new, isolation_level=None)) as database:
            database.executescript(f"PRAGMA journal_mode = WAL; {SCHEMA} PRAGMA user_version = {VERSION};")
        try:
            os.link(new, file)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            new.replace(file)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _forget(database: sqlite3.Connection, path: str) -> None:
    rows = database.execute("SELECT id FROM documents WHERE path = ?", (path,)).fetchall()
    database.executemany("DELETE FROM entries WHERE rowid = ?", rows)
    database.execute("DELETE FROM documents WHERE path = ?", (path,))
    database.execute("DELETE FROM files WHERE path = ?", (path,))


def _selection(match: str, limit: int, offset: int, since: datetime | None) -> tuple[str, tuple[Any, ...]]:
    if since is None:
        return BEST, (match, limit, offset)
    day, changed_ns = f"{since.astimezone(UTC):%Y-%m-%d}", int(since.timestamp() * 1e9)
    return BEST_SINCE, (match, day, changed_ns, limit, offset)


def _found(database: sqlite3.Connection, match: str, row: int) -> IndexedDocument:
    title, snippet = database.execute(
        f"SELECT title, snippet(entries, 1, '', '', ' ... ', {SNIPPET_WORDS}) "  # noqa: S608 - a constant
        "FROM entries WHERE entries MATCH ? AND rowid = ?",
        (match, row),
    ).fetchone()
    path, part, link, date = database.execute(
        "SELECT path, part, link, date FROM documents WHERE id = ?", (row,)
    ).fetchone()
    return IndexedDocument(
        path, part, link, date, join_ideographs(title), join_ideographs(snippet)[:SNIPPET_CHARACTERS]
    )


def _files(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """Yield the document files below the folder, except hidden ones. Links to folders or out of it are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith(".") or os.path.splitext(name)[1].lower() not in READERS:
                continue
            file = Path(place, name)
            try:
                if file.is_symlink() and not _is_inside(folder, file):
                    continue
                status = file.stat()
                path = file.relative_to(folder).as_posix()
                path.encode()  # SQLite stores only names in UTF-8
            except (
                OSError,
                UnicodeEncodeError,
            ):  # deleted since it was listed, a broken link, or a name that is not UTF-8
                continue
            yield path, (status.st_mtime_ns, status.st_size)


def _is_inside(folder: Path, file: Path) -> bool:
    """Whether a file is below the folder after all links are followed."""
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))  # Path.resolve raises for circles
