"""Waiting for what a click or a key sets off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, Request

# A navigation starts a few milliseconds after the click, and so does a script that fetches.
QUIET_S = 0.15
# What takes longer is found by the next snapshot.
SETTLE_S = 4.0
_AWAITED = frozenset({"document", "fetch", "xhr"})


@asynccontextmanager
async def settled(page: Page) -> AsyncIterator[None]:
    """After the block, wait until what it made the page load is there, for a moment at most."""
    loads = _Loads()
    page.on("request", loads.started)
    page.on("requestfinished", loads.ended)
    page.on("requestfailed", loads.ended)
    page.on("close", loads.closed)
    try:
        yield
        with anyio.move_on_after(SETTLE_S):
            await loads.wait(page)
    finally:
        page.remove_listener("request", loads.started)
        page.remove_listener("requestfinished", loads.ended)
        page.remove_listener("requestfailed", loads.ended)
        page.remove_listener("close", loads.closed)


class _Loads:
    """What a page is loading."""

    def __init__(self) -> None:
        self._running: set[Request] = set()
        self._has_navigated = False
        self._changed = anyio.Event()

    def started(self, request: Request) -> None:
        if request.resource_type in _AWAITED:
            self._running.add(request)
            self._has_navigated |= request.is_navigation_request()

    def ended(self, request: Request) -> None:
        self._running.discard(request)
        self._changed.set()

    def closed(self, _: Page) -> None:
        self._running.clear()
        self._changed.set()

    async def wait(self, page: Page) -> None:
        await anyio.sleep(QUIET_S)
        while self._running:
            self._changed = anyio.Event()
            await self._changed.wait()
        if self._has_navigated and not page.is_closed():
            try:
                await page.wait_for_load_state("domcontentloaded")
            except PlaywrightError:
                pass  # it has gone on to another page, or closed
