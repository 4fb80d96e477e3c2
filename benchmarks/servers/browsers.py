"""What a browser costs each of several tasks: pages of their own in the hub's one Chromium, or a Chromium each."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from benchmarks.common.measure import interleaved, pss_bytes, tree, tree_cpu_seconds
from benchmarks.common.result import Json, hub_config
from benchmarks.common.subprocess_worker import Worker
from benchmarks.common.worker_main import Act
from toolhub import Hub
from toolhub.errors import MissingExtra

VARIANTS = ("shared", "one_driver", "own")
TITLE = "An article"
# Starting five of them at once on two busy cores.
_START_S = 120.0
# Chromium works on after the page has come. A second later its size is within 1 % of that after six seconds.
SETTLE_S = 1.0


def missing() -> str | None:
    """Return what is missing here and how to get it; None if a browser can run."""
    from toolhub_servers.browser import create_server

    try:
        create_server()
    except (MissingExtra, ValueError) as exc:
        return str(exc)
    return None


# --- inside -------------------------------------------------------------------------------------------------------


Browse = Callable[[int], Awaitable[str]]
"""Opens the page for so many tasks. Returns Chromium's version, if known."""


@asynccontextmanager
async def open_pages(variant: str, host: str) -> AsyncIterator[Act]:
    """Answers ``{"tasks": n}`` with ``{"seconds", "version"}`` once every task has the page. A worker role.

    host: host and port of an endpoint that answers every path with the page.
    """
    async with _VARIANTS[variant](host) as browse:

        async def act(request: Json) -> Json:
            began = time.perf_counter()
            with anyio.fail_after(_START_S):
                version = await browse(request["tasks"])
            gc.collect()
            return {"seconds": time.perf_counter() - began, "version": version}

        yield act


@asynccontextmanager
async def _shared(host: str) -> AsyncIterator[Browse]:
    """Use the builtin server, with a session per task."""
    options = {"allow_private": [host], "snapshots": "none"}
    server = {"builtin": "browser", "options": options}
    with tempfile.TemporaryDirectory() as state:
        async with Hub(hub_config({"browser": server}, Path(state))) as hub:

            async def browse_one() -> None:
                task = await hub.open_task()
                result = await task.call("browser", "browser_navigate", {"url": f"http://{host}/"}, timeout=_START_S)
                _check(TITLE in str(result.text))

            async def browse(tasks: int) -> str:
                async with anyio.create_task_group() as browsing:
                    for _ in range(tasks):
                        browsing.start_soon(browse_one)
                return ""

            yield browse


@asynccontextmanager
async def _browsers(host: str, *, one_driver: bool) -> AsyncIterator[Browse]:
    """Chromium with the arguments and without the hidden pages, as the shared one; one page in each."""
    from playwright.async_api import async_playwright
    from toolhub_servers.browser import BrowserSettings
    from toolhub_servers.browser.chromium import ARGUMENTS, account, environment, find_chromium
    from toolhub_servers.browser.launcher import Launcher

    drivers: list[Any] = []
    browsers: list[Any] = []
    folders = contextlib.ExitStack()

    async def browse_one(driver: Any) -> None:
        folder = folders.enter_context(tempfile.TemporaryDirectory(prefix="toolhub-bench-"))
        launcher = Launcher(Path(folder), find_chromium(None), uid=account(BrowserSettings()))
        browser = await driver.chromium.launch(
            executable_path=launcher.path,
            args=ARGUMENTS,
            chromium_sandbox=True,
            env=environment(os.environ, launcher),
        )
        browsers.append(browser)
        context = await browser.new_context(viewport={"width": 1280, "height": 720})
        page = await context.new_page()
        await page.goto(f"http://{host}/")
        _check(await page.title() == TITLE)

    async def browse(tasks: int) -> str:
        drivers.extend([await async_playwright().start() for _ in range(1 if one_driver else tasks)])
        async with anyio.create_task_group() as browsing:
            for number in range(tasks):
                browsing.start_soon(browse_one, drivers[number % len(drivers)])
        return str(browsers[0].version)

    try:
        yield browse
    finally:
        for browser in browsers:
            await browser.close()
        for driver in drivers:
            await driver.stop()
        folders.close()


def _check(is_open: bool) -> None:
    if not is_open:
        raise RuntimeError("the page did not open; a browser without it must not count as a small one")


_VARIANTS: dict[str, Callable[[str], AbstractAsyncContextManager[Browse]]] = {
    "shared": _shared,
    "one_driver": functools.partial(_browsers, one_driver=True),
    "own": functools.partial(_browsers, one_driver=False),
}


# --- outside ------------------------------------------------------------------------------------------------------


def measure_browsers(tasks: int, rounds: int, *, settle_s: float = SETTLE_S) -> tuple[dict[str, list[Json]], float]:
    """Return the results of each round and variant, and the CPU seconds of processes that were not waited for.

    A round has seconds, processes, left_behind, and bytes: PSS of everything that came with the first page.
    """
    found: dict[str, list[Json]] = {variant: [] for variant in VARIANTS}
    unwaited_cpu_s = 0.0
    with Worker("benchmarks.common.search_endpoint:open_endpoint", {}) as endpoint:
        host = f"127.0.0.1:{endpoint.ask({})['port']}"
        for number, variant in interleaved(VARIANTS, rounds):
            if number == 0 and variant != "shared":
                continue  # one Chromium reads the files that all of them need
            waited = _waited_cpu_s()
            row, used = _measure(variant, host, tasks, settle_s)
            unwaited_cpu_s += max(0.0, used - (_waited_cpu_s() - waited))
            if number > 0:
                found[variant].append(row)
    return found, unwaited_cpu_s


def _measure(variant: str, host: str, tasks: int, settle_s: float) -> tuple[Json, float]:
    worker = Worker("benchmarks.servers.browsers:open_pages", {"variant": variant, "host": host})
    try:
        worker.wait_ready()
        before = _tree_bytes(worker.pid)
        told = worker.ask({"tasks": tasks}, within=_START_S + 30)
        time.sleep(settle_s)
        row = {**told, "bytes": _tree_bytes(worker.pid) - before, "processes": len(tree(worker.pid)) - 1}
        used = tree_cpu_seconds(worker.pid)
    finally:
        worker.close()
    return {**row, "left_behind": worker.left_behind}, used


def _tree_bytes(pid: int) -> int:
    return sum(pss_bytes(process.pid) for process in tree(pid))


def _waited_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
