"""The one Chromium of a hub. It starts with the first page and again after a crash; its contexts are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
from playwright.async_api import BrowserContext
from playwright.async_api import Error as PlaywrightError

from toolhub.owned import Held, hold
from toolhub.shared_resources import SharedResources
from toolhub_servers.browser.chromium import CLOSE_S, START_S, Chromium, open_chromium
from toolhub_servers.browser.errors import BrowserFull, BrowserUnavailable
from toolhub_servers.browser.guard import PublicRules, open_guard
from toolhub_servers.browser.settings import BrowserSettings

# Rendering is short. More at a time would only make each slower.
RENDERS = 4


@dataclass(frozen=True, slots=True)
class BrowserStatistics:
    """contexts: of tasks; renders: contexts that exist for one page; starts: of Chromium, since the hub's start."""

    contexts: int
    renders: int
    starts: int
    is_running: bool


@dataclass(frozen=True, slots=True)
class Lent:
    """A context and its Chromium."""

    context: BrowserContext
    chromium: Chromium


class SharedBrowser:
    """Use `open_shared()`. Any number of tasks may use it at once."""

    def __init__(self, owners: anyio.abc.TaskGroup, settings: BrowserSettings) -> None:
        self.render_places = anyio.Semaphore(RENDERS)
        self._owners = owners
        self._settings = settings
        self._starting = anyio.Lock()
        self._running: Held[Chromium] | None = None
        self._starts = 0
        self._contexts = 0
        self._renders = 0

    def __repr__(self) -> str:
        return f"<SharedBrowser {self.statistics()}>"

    def statistics(self) -> BrowserStatistics:
        return BrowserStatistics(self._contexts, self._renders, self._starts, self._is_running)

    @property
    def _is_running(self) -> bool:
        return self._running is not None and not self._running.is_closed and not self._running.value.is_gone

    async def lend(self, rules: PublicRules, *, is_render: bool = False, **options: Any) -> Held[Lent]:
        """Return a new empty context, separate from all others. Close it with `aclose()`; it may die before.

        options: those of Playwright's `new_context`. Raises BrowserFull, BrowserUnavailable.
        """
        opening = self._counted(rules, is_render, options)
        return await hold(self._owners, opening, until=lambda lent: lent.chromium.wait_gone(), name="browser context")

    @asynccontextmanager
    async def _counted(self, rules: PublicRules, is_render: bool, options: dict[str, Any]) -> AsyncIterator[Lent]:
        if not is_render and self._contexts >= self._settings.max_contexts:
            raise BrowserFull(
                f"{self._contexts} tasks have pages open, which is the limit (max_contexts); try again later"
            )
        self._contexts += not is_render
        self._renders += is_render
        try:
            async with open_guard(rules) as proxy, self._context(proxy, options) as lent:
                yield lent
        finally:
            self._contexts -= not is_render
            self._renders -= is_render

    @asynccontextmanager
    async def _context(self, proxy: str, options: dict[str, Any]) -> AsyncIterator[Lent]:
        lent = await self._new_context(proxy, options)
        try:
            yield lent
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                try:
                    await lent.context.close()
                except PlaywrightError:
                    pass  # it ended with Chromium

    async def _new_context(self, proxy: str, options: dict[str, Any]) -> Lent:
        """Try twice, because the death of Chromium may be noticed only now."""
        for _ in range(2):
            chromium = await self._chromium()
            try:
                # A cancellation in here would leak the context.
                with anyio.fail_after(START_S, shield=True):
                    context = await chromium.browser.new_context(
                        # Without the bypass rule Chromium would reach the loopback interface without the proxy.
                        proxy={"server": proxy, "bypass": "<-loopback>"},
                        **options,
                    )
                return Lent(context, chromium)
            except (PlaywrightError, TimeoutError) as exc:
                failure = exc
                if await chromium.check():
                    break
        raise BrowserUnavailable(f"the browser did not make a context: {failure}") from failure

    async def _chromium(self) -> Chromium:
        """Return the running Chromium. Start it if there is none."""
        async with self._starting:
            if self._running is None or not self._is_running:
                self._running = await hold(
                    self._owners, open_chromium(self._settings), until=Chromium.wait_gone, name="chromium"
                )
                self._starts += 1
            return self._running.value

    async def aclose(self) -> None:
        """End Chromium. Idempotent."""
        if self._running is not None:
            await self._running.aclose()


async def open_shared(resources: SharedResources, settings: BrowserSettings) -> SharedBrowser:
    """Return the hub's browser for these settings. Chromium starts with the first context."""
    return await resources.get_or_open(f"browser {settings.key}", lambda: _open(settings))


@asynccontextmanager
async def _open(settings: BrowserSettings) -> AsyncIterator[SharedBrowser]:
    async with anyio.create_task_group() as owners:
        shared = SharedBrowser(owners, settings)
        try:
            yield shared
        finally:
            with anyio.CancelScope(shield=True):
                await shared.aclose()
            owners.cancel_scope.cancel()
