"""The pages of one task, and what the pages did by themselves."""

from __future__ import annotations

from collections.abc import Awaitable

import anyio
from playwright.async_api import Dialog, FileChooser, Page
from playwright.async_api import Error as PlaywrightError

from toolhub_servers.browser.downloads import Downloads
from toolhub_servers.browser.errors import BrowserError
from toolhub_servers.browser.guard import PublicRules
from toolhub_servers.browser.reading import shortened
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.browser.shared import Lent

# In one call. A page that opens more is in a loop.
DIALOGS = 10
# A page answers within milliseconds, on a busy machine within a second.
ANSWER_S = 2.0
CLOSE_PAGE_S = 5.0
_NEWS_KEPT = 20
_LONGEST_MESSAGE = 300


class Tabs:
    """Tabs by number, as the model sees them. One is the current tab. They end with their context."""

    def __init__(self, lent: Lent, rules: PublicRules, settings: BrowserSettings, owner: str) -> None:
        context = lent.context
        self.downloads = Downloads(settings, owner, self.tell)
        self.rules = rules
        self._context = context
        self._memory = lent.chromium.memory
        self._limit = settings.max_tabs
        self._pages: list[Page] = []
        self._current: Page | None = None
        self._news: list[str] = []
        self._dialogs = 0
        self._expected = 0
        context.set_default_timeout(settings.action_s * 1000)
        context.set_default_navigation_timeout(settings.navigation_s * 1000)
        context.on("page", self._on_page)
        context.on("dialog", self._on_dialog)

    def __repr__(self) -> str:
        return f"<Tabs {[page.url for page in self._pages]}>"

    @property
    def pages(self) -> tuple[Page, ...]:
        return tuple(self._pages)

    @property
    def current(self) -> Page:
        """The current tab. Raises BrowserError if there is none."""
        if self._current is None:
            raise BrowserError("no page is open; open one with browser_navigate")
        return self._current

    async def current_or_new(self) -> Page:
        return self._current or await self.open()

    def is_current(self, page: Page) -> bool:
        return page is self._current

    async def open(self) -> Page:
        """Open a tab and make it the current one."""
        if len(self._pages) >= self._limit:
            raise BrowserError(f"there are {self._limit} tabs, which is the limit (max_tabs); close one first")
        self._expected += 1
        try:
            page = await self._context.new_page()
        finally:
            self._expected -= 1
        self._current = page
        return page

    def select(self, number: int) -> Page:
        """Make a tab the current one."""
        self._current = self.at(number)
        return self._current

    def at(self, number: int) -> Page:
        if not 0 <= number < len(self._pages):
            raise BrowserError(
                f"there is no tab {number}; browser_tabs with the action list tells those that there are"
            )
        return self._pages[number]

    async def close(self, page: Page) -> None:
        """Close a tab without asking the page. The last remaining tab becomes the current one."""
        with anyio.move_on_after(CLOSE_PAGE_S):
            try:
                await page.close()
            except PlaywrightError:
                pass  # it was closed already
        self._forget(page)

    async def calm(self) -> str:
        """Stop what the current tab is doing after a timeout; return a sentence about the result."""
        page = self._current
        if page is None:
            return ""
        try:
            with anyio.fail_after(ANSWER_S):
                await self._interrupt(page)
            return "The tab is still open."
        except (PlaywrightError, TimeoutError):
            await self.close(page)
            return "The page did not respond any more, so its tab was closed."

    async def _interrupt(self, page: Page) -> None:
        """Stop loading, and wait until the page answers. Playwright's own calls would wait until it has loaded."""
        session = await self._context.new_cdp_session(page)
        await session.send("Page.stopLoading")
        await session.send("Runtime.evaluate", {"expression": "0"})
        await session.detach()

    # What pages do by themselves

    def tell(self, news: str) -> None:
        """Keep a sentence for the next result."""
        if len(self._news) < _NEWS_KEPT:
            self._news.append(shortened(news))

    def start_call(self) -> None:
        self._dialogs = 0

    def take_news(self) -> list[str]:
        """Return the sentences since the last call."""
        refused = [f"Not loaded: {target}, which is not a public address." for target in self.rules.take_refused()]
        news, self._news = self._news, []
        return news + refused

    def _on_page(self, page: Page) -> Awaitable[None] | None:
        # Playwright calls handlers at once, and awaits what they return in a task of its own.
        if not self._expected:
            if len(self._pages) >= self._limit:
                self.tell(f"A new tab was closed at once: there may be {self._limit} (max_tabs).")
                return self.close(page)
            self.tell(f"The page opened a new tab, {len(self._pages)}; browser_tabs can select it.")
        self._pages.append(page)
        page.on("close", self._forget)
        page.on("crash", self._on_crash)
        page.on("download", self.downloads.save)
        page.on("filechooser", self._on_file_chooser)
        return None

    def _forget(self, page: Page) -> None:
        if page in self._pages:
            self._pages.remove(page)
        if page is self._current:
            self._current = self._pages[-1] if self._pages else None

    def _on_crash(self, page: Page) -> Awaitable[None]:
        what = self._memory.reason() or "crashed"
        self.tell(f"The page {page.url[:_LONGEST_MESSAGE]} {what}; its tab was closed.")
        return self.close(page)

    def _on_file_chooser(self, _: FileChooser) -> None:
        self.tell("The page asked for a file; this browser uploads none.")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self._dialogs += 1
        try:
            if dialog.type == "beforeunload":
                await dialog.accept()
                self.tell("The page asked to confirm leaving it; that was confirmed.")
            elif self._dialogs <= DIALOGS or dialog.page is None:
                self.tell(f"The page showed a dialog ({dialog.type}), dismissed: {dialog.message[:_LONGEST_MESSAGE]}")
                await dialog.dismiss()
            elif self._dialogs == DIALOGS + 1:
                self.tell(f"The page showed more than {DIALOGS} dialogs, so its tab was closed.")
                await self.close(dialog.page)
        except PlaywrightError:
            pass  # it was closed with its page
