"""Files that pages offer. They are saved to the task's folder, one by one; the page has no say in the path."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio import to_thread
from playwright.async_api import Download
from playwright.async_api import Error as PlaywrightError

from toolhub.scratch import Scratch
from toolhub_servers.browser.errors import BrowserError
from toolhub_servers.browser.settings import BrowserSettings

# A limit, because a page can offer one file after the other.
FILES_PER_TASK = 200
# A limit for slow servers: until then the file grows on the hub's disk.
DOWNLOAD_S = 300.0
# Cancelling a download takes milliseconds.
END_S = 1.0
# A fast server sends about 100 MB in that time.
LOOK_S = 0.2
# Left free for everything else on the disk.
LEAST_FREE_BYTES = 512 << 20
_UNFIT = re.compile(r"[^\w .()+,=@-]")
_LONGEST_NAME = 120


class Downloads:
    """The files of one task. tell: called with a sentence about each. Use `aclose()` when the task ends."""

    def __init__(self, settings: BrowserSettings, owner: str, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._owner = owner
        self._tell = tell
        self._folder: Path | None = None
        self._scratch: Scratch | None = None
        self._names: set[str] = set()
        self.ended = 0
        """How many downloads have ended, with or without success."""
        self._active = 0
        self._one_ended = anyio.Event()

    async def save(self, download: Download) -> None:
        """Wait for the file and keep it, or tell why it was not kept."""
        self._active += 1
        try:
            await self._save(download, fit_name(download.suggested_filename))
        finally:
            await _end(download)
            self._active -= 1
            self.ended += 1
            self._one_ended.set()
            self._one_ended = anyio.Event()

    async def _save(self, download: Download, name: str) -> None:
        if len(self._names) >= FILES_PER_TASK:
            self._tell(f"The file {name} was not downloaded: this task has {FILES_PER_TASK} files already.")
            return
        try:
            name = self._reserved(name)
            with anyio.fail_after(DOWNLOAD_S):
                self._tell(await self._keep(download, self._made_folder() / name))
        except TimeoutError:
            self._tell(f"The download of {name} was given up after {DOWNLOAD_S:g} s.")
        except BrowserError as exc:
            self._tell(f"The file {name} was not kept: {exc}")
        except (PlaywrightError, OSError) as exc:
            self._tell(f"The download of {name} failed: {exc}")

    async def _keep(self, download: Download, target: Path) -> str:
        """Return a sentence about the file that was saved."""
        size = await self._arrived_bytes(download)
        await to_thread.run_sync(_copy, Path(await download.path()), target)
        return f"Downloaded {target.name} ({size} bytes) to {target}"

    async def _arrived_bytes(self, download: Download) -> int:
        """Wait for the whole file and return its size. Raises BrowserError as soon as it is too large."""
        excess = ""

        async def watch(path: Path) -> None:
            nonlocal excess
            try:
                while not (excess := self._excess(path)):
                    await anyio.sleep(LOOK_S)
                await download.cancel()
            except (PlaywrightError, OSError):
                pass  # Chromium has ended and its folder is gone; the download fails with the reason

        async with anyio.create_task_group() as watching:
            if (growing := _path_of(download)) is not None:
                watching.start_soon(watch, growing)
            try:
                failure = await download.failure()
            except PlaywrightError as exc:
                failure = exc.message
            watching.cancel_scope.cancel()
        if failure is not None:
            raise BrowserError(excess) if excess else PlaywrightError(failure)
        path = Path(await download.path())
        if excess := self._excess(path):
            raise BrowserError(excess)
        return _size(path)

    def _excess(self, path: Path) -> str:
        """Return what is over a limit; empty if nothing is."""
        limit = self._settings.max_download_bytes
        if _size(path) > limit:
            return f"it has more than {limit} bytes (max_download_bytes)."
        if shutil.disk_usage(path.parent).free < LEAST_FREE_BYTES:
            return f"less than {LEAST_FREE_BYTES} bytes of the disk would be left free."
        return ""

    async def wait_idle(self, limit: float, *, ended: int = 0) -> None:
        """Wait until no download is running and `ended` downloads have ended, for at most so many seconds."""
        with anyio.move_on_after(limit):
            while self._active or self.ended < ended:
                await self._one_ended.wait()

    async def aclose(self) -> None:
        """Delete the files, unless they are in a folder that is to stay."""
        if self._scratch is not None:
            await to_thread.run_sync(self._scratch.remove)
            self._scratch = self._folder = None

    def _made_folder(self) -> Path:
        if self._folder is None:
            if self._settings.downloads_dir is None:
                self._scratch = Scratch("downloads")
                self._folder = self._scratch.path
            else:
                self._folder = Path(self._settings.downloads_dir).absolute() / folder_name(self._owner)
                self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _reserved(self, name: str) -> str:
        """Return a path with this name, or with a similar one that is free.

        Raises OSError if there is no folder for it.
        """
        folder = self._made_folder()
        stem, extension = os.path.splitext(name)
        number = 1
        # A link is not free either: what is written would go to its target.
        while name in self._names or os.path.lexists(folder / name):
            name = f"{stem} ({number}){extension}"
            number += 1
        self._names.add(name)
        return name


async def _end(download: Download) -> None:
    """Stop loading, and delete what was loaded."""
    with anyio.move_on_after(END_S, shield=True):
        try:
            await download.cancel()
            await download.delete()
        except PlaywrightError:
            pass  # it went with its page


def _copy(source: Path, target: Path) -> None:
    """Copy the file that Chromium wrote. Under root, a link must not copy a file that Chromium could not read."""
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.stat(source.parent).st_uid:
            raise PermissionError("it is not the browser's file")
        with target.open("xb") as copy:
            shutil.copyfileobj(stream, copy)


def _path_of(download: Download) -> Path | None:
    """Return the path of the growing file, which Playwright tells only when it is complete. None: unknown."""
    artifact = getattr(getattr(download, "_impl_obj", None), "_artifact", None)
    path = getattr(artifact, "_initializer", {}).get("absolutePath")
    return None if path is None else Path(path)


def _size(path: Path) -> int:
    """Return the size of the file, which has another name until it is complete."""
    for name in (path, path.with_name(f"{path.name}.crdownload")):
        try:
            return name.stat().st_size
        except OSError:
            pass
    return 0


def folder_name(owner: str) -> str:
    """Return a unique folder name for a task. A name that had to be changed gets a hash."""
    name = fit_name(owner)
    return name if name == owner else f"{name}-{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def fit_name(name: str) -> str:
    """Return a safe file name for the name that a server suggested."""
    stem, extension = os.path.splitext(_UNFIT.sub("_", name).strip(" ."))
    return (stem[: _LONGEST_NAME - len(extension[:20])] + extension[:20]) or "file"
