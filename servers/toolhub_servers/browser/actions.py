"""The actions of the tools on a task's tabs. Each function is one action and returns one text."""

from __future__ import annotations

import re

import anyio
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Locator, Page, Response
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolhub_servers.browser.errors import BrowserError
from toolhub_servers.browser.guard import checked_url, refusal, target_of
from toolhub_servers.browser.reading import cut, read_page, shortened
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.browser.tabs import Tabs

# After the document is loaded. Most pages show everything by then.
LOAD_S = 3.0
# A snapshot waits for each frame, and some frames never load.
FRAMES_S = 2.0
# A file that is complete by then is in this result, a larger one in a later result.
DOWNLOAD_WAIT_S = 5.0
_REF = re.compile(r"(?:f\d+)?e\d+")
NO_PAGE = "No page is open; open one with browser_navigate."


async def navigate(tabs: Tabs, url: str, settings: BrowserSettings) -> str:
    """Raises Refused, BrowserError."""
    url = checked_url(url, tabs.rules)
    page = await tabs.current_or_new()
    ended = tabs.downloads.ended
    try:
        response = await page.goto(url, wait_until="domcontentloaded")
    except PlaywrightError as exc:
        if "Download is starting" in exc.message:  # its event comes a moment later
            await tabs.downloads.wait_idle(DOWNLOAD_WAIT_S, ended=ended + 1)
            return await view(tabs, settings)
        _raise_refusal(tabs, page, url)
        raise
    _raise_refusal(tabs, page, url)
    await _wait_loaded(page)
    return await view(tabs, settings, response)


async def navigate_back(tabs: Tabs, settings: BrowserSettings) -> str:
    page = tabs.current
    before = page.url
    response = await page.go_back(wait_until="domcontentloaded")
    if response is None and page.url == before:
        raise BrowserError("there is no earlier page in this tab's history")
    await _wait_loaded(page)
    return await view(tabs, settings, response)


def _raise_refusal(tabs: Tabs, page: Page, url: str) -> None:
    """Raise Refused if the page itself must not be reached, directly or after a redirect."""
    for target in (target_of(url), target_of(page.url)):
        if target is not None and target in tabs.rules.refused:
            tabs.rules.take_refused()
            raise refusal(target)


async def _wait_loaded(page: Page) -> None:
    """Wait a moment for what the document loads."""
    with anyio.move_on_after(LOAD_S):
        try:
            await page.wait_for_load_state("load")
        except PlaywrightError:
            pass  # it was closed, or has gone on to another page


async def view(tabs: Tabs, settings: BrowserSettings, response: Response | None = None) -> str:
    """Return the result of an action: where the page is now and, if the settings say so, a snapshot."""
    await tabs.downloads.wait_idle(DOWNLOAD_WAIT_S)
    if not tabs.pages:
        return told(tabs, NO_PAGE)
    page = tabs.current
    lines = await _head(page)
    if response is not None and response.status >= 400:
        lines.append(f"- HTTP status: {response.status} {shortened(response.status_text)}".rstrip())
    if response is not None and response.headers.get("content-type", "").startswith("application/pdf"):
        lines.append("- This is a PDF, which the browser shows but cannot read; use a tool for documents.")
    if settings.snapshots == "full":
        lines += ["### Snapshot", cut(await _tree(page), settings.max_chars)]
    return told(tabs, "\n".join(lines))


async def _head(page: Page) -> list[str]:
    return ["### Page", f"- URL: {shortened(page.url)}", f"- Title: {shortened(await page.title())}"]


def told(tabs: Tabs, text: str) -> str:
    """Return the text, with what the pages did by themselves since the last result."""
    news = tabs.take_news()
    return "\n".join([text, "### Events", *(f"- {line}" for line in news)]) if news else text


async def _tree(page: Page) -> str:
    """Return the elements of a page. Frames that do not load are left out; a slow page itself gets more time."""
    try:
        return await page.aria_snapshot(mode="ai", timeout=FRAMES_S * 1000)
    except PlaywrightTimeout:
        return await page.aria_snapshot(mode="ai")


async def snapshot(tabs: Tabs, settings: BrowserSettings, start: int) -> str:
    page = tabs.current
    text = await _tree(page)
    return told(tabs, "\n".join([*await _head(page), "### Snapshot", cut(text, settings.max_chars, start)]))


async def read(tabs: Tabs, settings: BrowserSettings, start: int) -> str:
    page = tabs.current
    text = await read_page(page)
    return told(
        tabs, cut(text, settings.max_chars, start) if text else f"The page {shortened(page.url)} shows no text."
    )


async def element(tabs: Tabs, ref: str) -> tuple[Page, Locator]:
    """Return the element that a snapshot called `ref`. Raises BrowserError if the page has none."""
    page = tabs.current
    if not _REF.fullmatch(ref):
        raise BrowserError(f"{ref[:100]!r} is not a reference; take one from a snapshot, such as e12")
    found = page.locator(f"aria-ref={ref}")
    try:
        is_there = await found.count() == 1
    except PlaywrightError as exc:
        if page.is_closed():
            raise
        raise BrowserError(f"the reference {ref} cannot be found: take a new browser_snapshot") from exc
    if not is_there:
        raise BrowserError(f"the page has no element {ref} any more: take a new browser_snapshot")
    return page, found


async def wait_for(tabs: Tabs, settings: BrowserSettings, seconds: float | None, text: str, gone: str) -> str:
    """Wait for a text to appear, for another to disappear, or for some seconds."""
    page = tabs.current
    limit = min(settings.wait_s if seconds is None else max(seconds, 0), settings.wait_s)
    if text:
        await page.get_by_text(text).first.wait_for(state="visible", timeout=limit * 1000)
    if gone:
        await page.get_by_text(gone).first.wait_for(state="hidden", timeout=limit * 1000)
    if not (text or gone):
        await anyio.sleep(limit)
    return await view(tabs, settings)


async def list_tabs(tabs: Tabs) -> str:
    if not tabs.pages:
        return told(tabs, NO_PAGE)
    lines = []
    for number, page in enumerate(tabs.pages):
        mark = " (current)" if tabs.is_current(page) else ""
        lines.append(f"- {number}:{mark} [{await _title(page)}] ({shortened(page.url)})")
    return told(tabs, "\n".join(["### Tabs", *lines]))


async def _title(page: Page) -> str:
    """Return the title, if the page can be asked for it."""
    with anyio.move_on_after(1):
        try:
            return shortened(await page.title())
        except PlaywrightError:
            return "?"
    return "does not respond"
