"""Wait for the effects of a click or a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, Request

# A navigation, or a script that fetches, starts a few milliseconds after the click.
QUIET_S = 0.15
# The next snapshot shows what takes longer.
SETTLE_S = 4.0
_AWAITED = frozenset({"document", "fetch", "xhr"})


@asynccontextmanager
async def settled(page: Page) -> AsyncIterator[None]:
    """After the block, wait a moment for what it made the page load."""
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
    """The requests that a page is waiting for."""

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
                pass  # it has gone on to another page, or was closed
