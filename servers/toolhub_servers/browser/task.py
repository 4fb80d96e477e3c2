"""A task's use of the browser: opened with its first page, closed with the task. Lost pages are told once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from toolhub.extensions import BuiltinContext
from toolhub.owned import Held
from toolhub_servers.browser.chromium import CLOSE_S
from toolhub_servers.browser.errors import PagesLost
from toolhub_servers.browser.guard import PublicRules
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.browser.shared import Lent, open_shared
from toolhub_servers.browser.tabs import Tabs
from toolhub_servers.serving.server import ServerContext

CRASHED = "The browser was restarted and its pages are lost (state_lost); navigate again."


class TaskBrowser:
    """One owner's tabs. Give `lifespan` to the MCPServer; take `tabs()` and use them while holding `turn`."""

    def __init__(self, context: BuiltinContext | None, settings: BrowserSettings) -> None:
        self.settings = settings
        self.turn = anyio.Lock()
        """For one call at a time: two calls would act on the same page."""
        self._context = ServerContext(context)
        self._lent: Held[Lent] | None = None
        self._tabs: Tabs | None = None
        self._news = ""
        self._used_at = 0.0
        self._tasks: anyio.abc.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<TaskBrowser of {self._context.owner}, {self._tabs or 'closed'}>"

    @asynccontextmanager
    async def lifespan(self, server: Any) -> AsyncIterator[None]:
        """The lifespan of the server. The browser starts with the first page, so this costs nothing."""
        async with self._context.lifespan(server), anyio.create_task_group() as self._tasks:
            try:
                yield
            finally:
                with anyio.move_on_after(2 * CLOSE_S, shield=True):
                    await self.close()
                self._tasks.cancel_scope.cancel()

    async def tabs(self) -> Tabs:
        """Return the owner's tabs. Open them if there are none.

        Raises PagesLost once after they were lost, BrowserFull, BrowserUnavailable.
        """
        self._used_at = anyio.current_time()
        if self._lent is not None and self._is_lost:
            await self.close()
            raise PagesLost(CRASHED)
        if self._news:
            news, self._news = self._news, ""
            raise PagesLost(news)
        if self._tabs is None:
            self._tabs = await self._open()
        return self._tabs

    @property
    def _is_lost(self) -> bool:
        return self._lent is not None and (self._lent.is_closed or self._lent.value.chromium.is_gone)

    async def check(self) -> None:
        """Raise PagesLost, once, if the browser has died."""
        if self._lent is not None and not await self._lent.value.chromium.check():
            await self.close()
            raise PagesLost(CRASHED)

    async def _open(self) -> Tabs:
        settings = self.settings
        rules = PublicRules.allowing(settings.allow_private)
        shared = await open_shared(self._context.resources, settings)
        self._lent = await shared.lend(
            rules,
            viewport={"width": settings.viewport_width, "height": settings.viewport_height},
            locale=settings.locale,
            user_agent=settings.user_agent,
            accept_downloads=True,
            service_workers="block",  # a page's worker would outlive the page
        )
        if self._tasks is not None:
            self._tasks.start_soon(self._close_when_idle, self._lent)
        return Tabs(self._lent.value, rules, settings, self._context.owner)

    async def _close_when_idle(self, lent: Held[Lent]) -> None:
        idle_s = self.settings.idle_s
        while lent is self._lent:
            await anyio.sleep_until(self._used_at + idle_s)
            async with self.turn:
                if lent is self._lent and anyio.current_time() >= self._used_at + idle_s:
                    self._news = f"The browser's pages were closed after {idle_s:g} s without use; navigate again."
                    await self.close()

    async def close(self) -> None:
        """Close the pages. Delete cookies, storage and temporary files."""
        lent, self._lent = self._lent, None
        tabs, self._tabs = self._tabs, None
        if tabs is not None:
            await tabs.downloads.aclose()
        if lent is not None:
            await lent.aclose()
