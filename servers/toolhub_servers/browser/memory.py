"""Limit the memory of pages: the process of a page that takes too much is killed, and its task is told why.

Chromium's own limit covers only the heap of scripts. So the processes are watched from outside, which works even while
a page is busy. A page shares its process only with pages and frames of its own task.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
from playwright.async_api import Browser
from playwright.async_api import Error as PlaywrightError

logger = logging.getLogger(__name__)

# A page fills about 1 GB/s, so it may exceed the limit by that much before it is seen.
LOOK_S = 0.5
# Chromium reports the end of a process within milliseconds. The rest is for a busy machine.
TOLD_WITHIN_S = 5.0
_LINES = ("RssAnon", "RssShmem")
_CAN_LOOK = sys.platform == "linux"


def memory_arguments(limit: int) -> list[str]:
    """Return Chromium's own memory limit, for machines where there is no watch."""
    return [] if _CAN_LOOK else [f"--js-flags=--max-old-space-size={max(limit >> 20, 1)}"]


class MemoryWatch:
    """The watch over one Chromium. limit: bytes per process. Without /proc it does nothing."""

    def __init__(self, browser: Browser, limit: int) -> None:
        self._browser = browser
        self._limit = limit
        self._ended_at = -TOLD_WITHIN_S

    def __repr__(self) -> str:
        return f"<MemoryWatch of {self._limit} bytes a page>"

    def reason(self) -> str | None:
        """Return why a page crashed, if the watch killed it just now."""
        if anyio.current_time() - self._ended_at > TOLD_WITHIN_S:
            return None
        return f"used more than {self._limit} bytes of memory, the limit of a page (max_page_bytes)"

    async def run(self) -> None:
        """Watch until Chromium has ended."""
        if not _CAN_LOOK:
            return
        try:
            session = await self._browser.new_browser_cdp_session()
            while True:
                for process in (await session.send("SystemInfo.getProcessInfo"))["processInfo"]:
                    self._look(process)
                await anyio.sleep(LOOK_S)
        except PlaywrightError:
            pass  # it has ended

    def _look(self, process: dict[str, Any]) -> None:
        pid = process["id"]
        if process["type"] == "renderer" and memory_bytes(pid) > self._limit and _is_ours(pid):
            logger.warning("a page is ended: it uses more than %d bytes of memory (max_page_bytes)", self._limit)
            self._ended_at = anyio.current_time()
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # it ended by itself


def memory_bytes(pid: int) -> int:
    """Return the memory of a process without the files that it maps; 0 if it is gone."""
    status = _status(pid)
    return sum(int(status.get(line, "0").split()[0]) for line in _LINES) * 1024


def _is_ours(pid: int) -> bool:
    """Whether this process started it. Chromium in a container may report other process ids."""
    while pid > 1:
        pid = int(_status(pid).get("PPid", "0"))
        if pid == os.getpid():
            return True
    return False


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
