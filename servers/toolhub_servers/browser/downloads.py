"""Files that pages offer: saved to the task's folder, one by one, without the page's say in where."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio import to_thread
from playwright.async_api import Download
from playwright.async_api import Error as PlaywrightError

from toolhub_servers.browser.settings import BrowserSettings

# A page can offer one after the other.
FILES_PER_TASK = 200
# A slow server may take its time, but not for ever: until then the file grows on the hub's disk.
DOWNLOAD_S = 300.0
_UNFIT = re.compile(r"[^\w .()+,=@-]")
_LONGEST_NAME = 120


class Downloads:
    """The files of one task. tell: is called with a sentence on each. Use `aclose()` when the task ends."""

    def __init__(self, settings: BrowserSettings, owner: str, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._owner = owner
        self._tell = tell
        self._folder: Path | None = None
        self._names: set[str] = set()
        self.ended = 0
        """How many downloads have ended, well or badly."""
        self._active = 0
        self._one_ended = anyio.Event()

    async def save(self, download: Download) -> None:
        """Wait for the file and keep it, or tell why not."""
        self._active += 1
        try:
            await self._save(download, fit_name(download.suggested_filename))
        finally:
            self._active -= 1
            self.ended += 1
            self._one_ended.set()
            self._one_ended = anyio.Event()

    async def _save(self, download: Download, name: str) -> None:
        if len(self._names) >= FILES_PER_TASK:
            self._tell(f"The file {name} was not downloaded: this task has {FILES_PER_TASK} files already.")
            return
        name = self._reserved(name)
        try:
            with anyio.fail_after(DOWNLOAD_S):
                self._tell(await self._keep(download, name))
        except TimeoutError:
            self._tell(f"The download of {name} was given up after {DOWNLOAD_S:g} s.")
        except (PlaywrightError, OSError) as exc:
            self._tell(f"The download of {name} failed: {exc}")

    async def _keep(self, download: Download, name: str) -> str:
        """Return a sentence on what became of the file. Cancels the download if it is not to be waited for."""
        try:
            size = (await anyio.Path(await download.path()).stat()).st_size
            if size > self._settings.max_download_bytes:
                return f"The file {name} was not kept: its {size} bytes are more than max_download_bytes."
            target = self._made_folder() / name
            await download.save_as(target)
            return f"Downloaded {name} ({size} bytes) to {target}"
        finally:
            with anyio.move_on_after(1, shield=True):
                try:
                    await download.cancel()
                    await download.delete()
                except PlaywrightError:
                    pass  # it went with its page

    async def wait_idle(self, limit: float, *, ended: int = 0) -> None:
        """Wait until nothing is being downloaded and `ended` downloads have ended, for so many seconds at most."""
        with anyio.move_on_after(limit):
            while self._active or self.ended < ended:
                await self._one_ended.wait()

    async def aclose(self) -> None:
        """Remove the files, unless there is a folder where they stay."""
        if self._folder is not None and self._settings.downloads_dir is None:
            await to_thread.run_sync(lambda folder: shutil.rmtree(folder, ignore_errors=True), self._folder)
            self._folder = None

    def _made_folder(self) -> Path:
        if self._folder is None:
            if self._settings.downloads_dir is None:
                self._folder = Path(tempfile.mkdtemp(prefix="toolhub-downloads-"))
            else:
                self._folder = Path(self._settings.downloads_dir).absolute() / fit_name(self._owner)
                self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _reserved(self, name: str) -> str:
        """The name, or one like it that no other file of the task has."""
        stem, extension = os.path.splitext(name)
        number = 1
        while name in self._names:
            name = f"{stem} ({number}){extension}"
            number += 1
        self._names.add(name)
        return name


def fit_name(name: str) -> str:
    """Return a name for one file in a folder, whatever a server suggested."""
    stem, extension = os.path.splitext(_UNFIT.sub("_", name).strip(" ."))
    return (stem[: _LONGEST_NAME - len(extension[:20])] + extension[:20]) or "file"
