"""Search a folder of documents, without any service or key."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote

import anyio
from anyio import to_thread

from toolhub.config.section import Pause, Seconds
from toolhub.shared_resources import SharedResources
from toolhub_servers.search.backend import Backend, BackendSettings, BaseUrl, SharedSettings
from toolhub_servers.search.backends.local.index import Index, IndexedDocument, Progress
from toolhub_servers.search.backends.local.words import match_of
from toolhub_servers.search.model import Hit, Query, Results, SearchFailed, utc_now

# A search waits this long for the index of changed files. Then it uses the old index.
REFRESH_PATIENCE = 2.0
MAX_HITS = 100
# SQLite counts with 64 bits.
MAX_OFFSET = 1 << 40

logger = logging.getLogger(__name__)


class LocalSettings(BackendSettings):
    """A folder of .md, .txt, .html, .json and .jsonl documents."""

    VARIABLES = {"folder": "SEARCH_FOLDER"}
    REQUIRED = ("folder",)

    folder: str | None = None
    base_url: BaseUrl | None = None
    """The URL at which the folder is published; without it links are file: URLs."""
    cache_dir: str | None = None
    """Where the index is kept; default is the user's cache directory."""
    refresh_s: Pause = 5
    """A search looks for changed files if no search has done so for that long."""
    patience_s: Seconds = 15
    """How long a search waits for the first index."""

    def find_problem(self) -> str | None:
        if self.folder and not Path(self.folder).is_dir():
            return (
                f"local.folder {str(Path(self.folder).absolute())!r} is not a directory: make it, or name another one, "
                "for example by the variable that the config has there (TOOLHUB_DOCS in configs/local.yaml)"
            )
        return None


@dataclass(frozen=True, slots=True)
class LibraryStatistics:
    """The first three are of the last refresh, or of the running one."""

    files_done: int
    files_total: int
    files_skipped: int
    refreshes: int
    searches: int
    is_built: bool


class Library:
    """One folder's index for the whole hub, with the task that refreshes it. Use `open_library()`."""

    def __init__(self, index: Index, *, refresh_s: float) -> None:
        self.index = index
        self.progress = Progress()
        self._refresh_s = refresh_s
        self._problem: str | None = None
        self._is_built = False
        self._refreshes = self._searches = 0
        self._checked_at = float("-inf")
        self._wanted = anyio.Event()
        self._checked = anyio.Event()

    def __repr__(self) -> str:
        state = "ready" if self._is_built else f"{self.progress.done} of {self.progress.total} files"
        return f"<Library {self.index.folder}, {state}>"

    def statistics(self) -> LibraryStatistics:
        at = self.progress
        return LibraryStatistics(at.done, at.total, at.skipped, self._refreshes, self._searches, self._is_built)

    async def find(
        self, match: str, *, limit: int, offset: int, since: datetime | None = None
    ) -> list[IndexedDocument]:
        """Call `Index.find` in a thread. Raises SearchFailed."""
        self._searches += 1
        find = partial(self.index.find, match, limit=limit, offset=offset, since=since)
        try:
            return await to_thread.run_sync(find)
        except sqlite3.Error as exc:
            raise SearchFailed(f"the index of {self.index.folder} cannot be searched: {exc}") from exc

    async def wait_fresh(self, *, patience_s: float) -> None:
        """Wait a short time until changed files are in the index. Raises SearchFailed if there is no index yet.

        patience_s: how long to wait for the first index.
        """
        if anyio.current_time() - self._checked_at >= self._refresh_s:
            self._wanted.set()
            checked = self._checked
            with anyio.move_on_after(REFRESH_PATIENCE if self._is_built else patience_s):
                await checked.wait()
        if not self._is_built:
            done, total = self.progress.done, self.progress.total
            reason = self._problem or f"it is still being built, {done} of {total} files are done; try again later"
            raise SearchFailed(f"the index of {self.index.folder} cannot be searched: {reason}")

    async def keep(self) -> None:
        """Refresh the index whenever a search wants it. Ends only by cancellation."""
        while True:
            await self._wanted.wait()
            # Files may change while they are read. A search that asks from here on causes another refresh.
            self._wanted, checked, self._checked = anyio.Event(), self._checked, anyio.Event()
            started = anyio.current_time()
            try:
                await to_thread.run_sync(self.index.refresh, self.progress)
            except (OSError, sqlite3.Error) as exc:
                self._problem = f"{type(exc).__name__}: {exc}"
                logger.warning("index of %s not refreshed: %s", self.index.folder, self._problem)
            else:
                self._problem, self._is_built = None, True
                self._refreshes += 1
            self._checked_at = started
            checked.set()

    def begin(self) -> None:
        self._wanted.set()


@asynccontextmanager
async def open_library(folder: Path, file: Path, refresh_s: float) -> AsyncIterator[Library]:
    """Build or refresh the index, and keep it up to date during the block."""
    library = Library(Index(folder, file), refresh_s=refresh_s)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(library.keep)
        library.begin()
        try:
            yield library
        finally:
            library.progress.stop.set()  # a thread cannot be cancelled
            tasks.cancel_scope.cancel()


class Local:
    """Uses `q`, `num`, `page` and `tbs` of a query, and ignores places and languages."""

    def __init__(self, library: Library, settings: LocalSettings, *, now: Callable[[], datetime] = utc_now) -> None:
        self._library = library
        self._settings = settings
        self._now = now

    async def search(self, query: Query) -> Results:
        await self._library.wait_fresh(patience_s=self._settings.patience_s)
        match = match_of(query.q)
        limit, offset = min(query.count, MAX_HITS), min(query.skipped, MAX_OFFSET)
        since = query.since(self._now())
        found = await self._library.find(match, limit=limit, offset=offset, since=since) if match else []
        hits = tuple(self._hit(item, position) for position, item in enumerate(found, start=1))
        return Results("local", hits, query.parameters("local"))

    def _hit(self, found: IndexedDocument, position: int) -> Hit:
        return Hit(found.title, found.link or self._link(found), found.snippet, found.date, position)

    def _link(self, found: IndexedDocument) -> str:
        part = f"#{found.part}" if found.part else ""
        if self._settings.base_url:
            return f"{self._settings.base_url}/{quote(found.path)}{part}"
        return (self._library.index.folder / found.path).as_uri() + part


async def open_local(own: LocalSettings, shared: SharedSettings, resources: SharedResources) -> Local:
    folder, file = _locations(own)
    key = f"search index {folder} {file} {own.refresh_s:g}"
    library = await resources.get_or_open(key, lambda: open_library(folder, file, own.refresh_s))
    return Local(library, own)


def _locations(settings: LocalSettings) -> tuple[Path, Path]:
    """Return the folder and the file of its index."""
    folder = Path(settings.folder or "").resolve()
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "toolhub", "search")
    cache = Path(settings.cache_dir).resolve() if settings.cache_dir else usual
    return folder, cache / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.sqlite3"


LOCAL = Backend(
    "local",
    LocalSettings,
    open_local,
    caches_itself=True,  # a search is cheap, and the files change
    opens_at_start=True,  # building the index takes time
)
