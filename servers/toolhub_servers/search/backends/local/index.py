"""A full-text index of a folder in one SQLite file. Everything here blocks and runs in threads.

Files are known by path, time of change and size: a refresh reads only those that are new or different, a batch of them
in each transaction, so that a search in the meantime sees whole files, old or new. Several processes may use and
refresh one index: SQLite lets one of them write at a time, and each looks again what is left to do when it may.
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

# Another one makes the old file useless: it is thrown away and built anew.
VERSION = 1
# Files per transaction: enough to be fast, few enough that others wait for a moment only.
BATCH = 50
# Another process may be writing a batch with a large file.
BUSY_TIMEOUT = 30.0
# FTS5 gives at most 64; a Chinese character is a word.
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
# JSON documents name their days in many ways; what does not begin like 2026-01-31 says nothing here.
BEST_SINCE = """
SELECT entries.rowid FROM entries JOIN documents ON documents.id = entries.rowid JOIN files USING (path)
WHERE entries MATCH ? AND CASE WHEN date GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'
THEN date >= ? ELSE changed_ns >= ? END
ORDER BY entries.rank, entries.rowid LIMIT ? OFFSET ?
"""

Stamp = tuple[int, int]
"""Time of change in nanoseconds, size in bytes."""


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """path: below the folder, with slashes. part, link and date: as in Document."""

    path: str
    part: int
    link: str | None
    date: str | None
    title: str
    snippet: str


@dataclass(slots=True)
class Progress:
    """Of a refresh; may be read from any thread. Set `stop` to end it after the file at hand."""

    done: int = 0
    total: int = 0
    skipped: int = 0
    """Files that could not be read."""
    stop: threading.Event = field(default_factory=threading.Event)


class Index:
    """`refresh` is for one thread at a time, `find` for any number."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder = folder
        self.file = file

    def __repr__(self) -> str:
        return f"<Index {self.file} of {self.folder}>"

    def refresh(self, progress: Progress) -> None:
        """Bring the index up to what is in the folder. Raises OSError, sqlite3.Error."""
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

        since: only what is of that time or later, by the day that the document names, else by the change of its file.
        """
        address = f"file:{quote(str(self.file))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)) as database:
            database.execute("BEGIN")  # all of it sees the same state, whatever is refreshed meanwhile
            # Two steps: SQLite would make the snippets of all that match before it keeps the best.
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
        """Replace what the index knows of a file, unless another process has just done that."""
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

    It gets its name when it is complete: SQLite does not wait while others change the journal mode, it fails.
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
    """Every document file below the folder, except in hidden places; links to folders or out of it are not followed."""
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
                path.encode()  # SQLite keeps only names that are UTF-8
            except (OSError, UnicodeEncodeError):  # gone since it was listed, a broken link, or an odd name
                continue
            yield path, (status.st_mtime_ns, status.st_size)


def _is_inside(folder: Path, file: Path) -> bool:
    """Whether a file is below the folder when all links are followed."""
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))  # Path.resolve raises for circles
