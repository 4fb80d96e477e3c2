"""The tools, with the names of @playwright/mcp, and the one way in which each of them runs."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
from mcp.server.mcpserver.tools import Tool
from mcp.types import ImageContent, TextContent, ToolAnnotations
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolhub_servers.browser import actions
from toolhub_servers.browser.errors import BrowserError
from toolhub_servers.browser.reading import shortened, take_screenshot
from toolhub_servers.browser.settle import SETTLE_S, settled
from toolhub_servers.browser.tabs import Tabs
from toolhub_servers.browser.task import TaskBrowser
from toolhub_servers.serving.server import make_tool

Content = list[TextContent | ImageContent]
Action = Callable[[Tabs], Awaitable[str | Content]]
Method = Callable[..., Awaitable[str | Content]]

# In addition to the time of the action itself: for its effects, downloads, and the snapshot.
REPORT_S = actions.LOAD_S + SETTLE_S + actions.DOWNLOAD_WAIT_S + 5
_LONGEST_REASON = 600
# Chromium reports this whatever kept its proxy from connecting.
_NO_TUNNEL = "ERR_TUNNEL_CONNECTION_FAILED"
_UNREACHABLE = " (the host was not found, or did not answer)"

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=True)
_ACTS = ToolAnnotations(destructive_hint=True, open_world_hint=True)


class BrowserTools:
    """The tools. Every expected failure is a text, as models know it, and not an error."""

    def __init__(self, browser: TaskBrowser) -> None:
        self._browser = browser
        self._settings = browser.settings

    def mcp_tools(self) -> list[Tool]:
        acting: list[Method] = [
            self.browser_navigate,
            self.browser_navigate_back,
            self.browser_click,
            self.browser_type,
            self.browser_press_key,
            self.browser_select_option,
            self.browser_hover,
            self.browser_tabs,
            self.browser_close,
        ]
        reading: list[Method] = [
            self.browser_snapshot,
            self.browser_read,
            self.browser_take_screenshot,
            self.browser_wait_for,
        ]
        return [
            *(make_tool(tool, annotations=_ACTS, is_titled=False) for tool in acting),
            *(make_tool(tool, annotations=_READS, is_titled=False) for tool in reading),
        ]

    async def browser_navigate(self, url: str) -> str | Content:
        """Open an http or https address in the current tab.

        Args:
            url: The address.
        """
        return await self._do(
            lambda tabs: actions.navigate(tabs, url, self._settings), within=self._settings.navigation_s
        )

    async def browser_navigate_back(self) -> str | Content:
        """Go back to the previous page of the current tab."""
        return await self._do(
            lambda tabs: actions.navigate_back(tabs, self._settings), within=self._settings.navigation_s
        )

    async def browser_snapshot(self, start: int = 0) -> str | Content:
        """Show the current page as a tree of its elements, with the references (ref) that other tools take.

        Args:
            start: The character to start from, to go on where a snapshot was cut.
        """
        return await self._do(lambda tabs: actions.snapshot(tabs, self._settings, start))

    async def browser_read(self, start: int = 0) -> str | Content:
        """Read the text of the current page as Markdown. Shorter than a snapshot, and without references.

        Args:
            start: The character to start from, to go on where the text was cut.
        """
        return await self._do(lambda tabs: actions.read(tabs, self._settings, start))

    async def browser_click(
        self,
        ref: str,
        element: str = "",
        doubleClick: bool = False,
        button: Literal["left", "right", "middle"] = "left",
    ) -> str | Content:
        """Click an element of the current page.

        Args:
            ref: The reference of the element in the latest snapshot, such as e12.
            element: What the element is, in words.
            doubleClick: Whether to click twice.
            button: The mouse button.
        """

        async def act(tabs: Tabs) -> str:
            page, target = await actions.element(tabs, ref)
            async with settled(page):
                await target.click(button=button, click_count=2 if doubleClick else 1)
            return await actions.view(tabs, self._settings)

        return await self._do(act)

    async def browser_type(
        self, ref: str, text: str, element: str = "", submit: bool = False, slowly: bool = False
    ) -> str | Content:
        """Type text into an input of the current page, in place of what it holds.

        Args:
            ref: The reference of the input in the latest snapshot, such as e12.
            text: The text.
            element: What the input is, in words.
            submit: Whether to press Enter afterwards.
            slowly: Whether to type key by key, for pages that listen to keys.
        """

        async def act(tabs: Tabs) -> str:
            page, target = await actions.element(tabs, ref)
            async with settled(page):
                await target.fill("" if slowly else text)
                if slowly:
                    await target.press_sequentially(text)
                if submit:
                    await target.press("Enter")
            return await actions.view(tabs, self._settings)

        return await self._do(act)

    async def browser_press_key(self, key: str) -> str | Content:
        """Press a key on the current page.

        Args:
            key: The name of the key, such as ArrowLeft or Control+a, or a character.
        """

        async def act(tabs: Tabs) -> str:
            page = tabs.current
            async with settled(page):
                await page.keyboard.press(key)
            return await actions.view(tabs, self._settings)

        return await self._do(act)

    async def browser_select_option(self, ref: str, values: list[str], element: str = "") -> str | Content:
        """Choose options of a drop-down list.

        Args:
            ref: The reference of the list in the latest snapshot, such as e12.
            values: The values or the visible texts of the options.
            element: What the list is, in words.
        """

        async def act(tabs: Tabs) -> str:
            page, target = await actions.element(tabs, ref)
            async with settled(page):
                await target.select_option(values)
            return await actions.view(tabs, self._settings)

        return await self._do(act)

    async def browser_hover(self, ref: str, element: str = "") -> str | Content:
        """Move the mouse over an element of the current page.

        Args:
            ref: The reference of the element in the latest snapshot, such as e12.
            element: What the element is, in words.
        """

        async def act(tabs: Tabs) -> str:
            page, target = await actions.element(tabs, ref)
            async with settled(page):
                await target.hover()
            return await actions.view(tabs, self._settings)

        return await self._do(act)

    async def browser_tabs(
        self, action: Literal["list", "new", "select", "close"], index: int | None = None, url: str = ""
    ) -> str | Content:
        """List, open, select or close tabs.

        Args:
            action: What to do.
            index: The number of the tab, to select or close. Default for closing is the current one.
            url: The address to open in a new tab.
        """

        async def act(tabs: Tabs) -> str:
            if action == "new":
                await tabs.open()
                if url:
                    return await actions.navigate(tabs, url, self._settings)
            elif action == "select":
                await tabs.select(-1 if index is None else index).bring_to_front()
            elif action == "close" and tabs.pages:
                await tabs.close(tabs.current if index is None else tabs.at(index))
            return await actions.list_tabs(tabs)

        return await self._do(act, within=self._settings.navigation_s)

    async def browser_take_screenshot(self, fullPage: bool = False) -> str | Content:
        """Take a picture of the current page. To act on elements, use browser_snapshot instead.

        Args:
            fullPage: Whether to take the whole page and not only the visible part.
        """

        async def act(tabs: Tabs) -> Content:
            page = tabs.current
            picture, kind = await take_screenshot(page, self._settings, full_page=fullPage)
            image = ImageContent(type="image", data=base64.b64encode(picture).decode(), mime_type=f"image/{kind}")
            return [TextContent(type="text", text=actions.told(tabs, f"Screenshot of {shortened(page.url)}")), image]

        return await self._do(act)

    async def browser_wait_for(self, time: float | None = None, text: str = "", textGone: str = "") -> str | Content:
        """Wait until a text is on the current page, until it is gone, or for some seconds.

        Args:
            time: Seconds to wait; with a text, the longest time to wait for it.
            text: The text to wait for.
            textGone: The text that is to disappear.
        """
        return await self._do(
            lambda tabs: actions.wait_for(tabs, self._settings, time, text, textGone), within=2 * self._settings.wait_s
        )

    async def browser_close(self) -> str | Content:
        """Close all tabs and forget cookies, storage and temporary downloads. The next browser_navigate starts anew."""
        async with self._browser.turn:
            await self._browser.close()
        return "The browser is closed."

    async def _do(self, action: Action, *, within: float | None = None) -> str | Content:
        """Run an action on the task's tabs, one call at a time. Every failure becomes a text that says what to do."""
        limit = (within or self._settings.action_s) + REPORT_S
        async with self._browser.turn:
            try:
                tabs = await self._browser.tabs()
                tabs.start_call()
            except BrowserError as exc:
                return f"[ERROR]: {exc}"
            try:
                with anyio.fail_after(limit):
                    return await action(tabs)
            except BrowserError as exc:
                return actions.told(tabs, f"[ERROR]: {exc}")
            except (PlaywrightError, TimeoutError) as exc:
                return await self._told_failure(tabs, exc, limit)

    async def _told_failure(self, tabs: Tabs, exc: Exception, limit: float) -> str:
        """Find out whether the browser, the page or the action failed."""
        try:
            await self._browser.check()
        except BrowserError as lost:
            return f"[ERROR]: {lost}"
        if isinstance(exc, PlaywrightTimeout | TimeoutError):
            reason = _reason(exc) or f"Not done within {limit:g} s."
            return actions.told(tabs, f"[ERROR]: {reason}\n{await tabs.calm()}")
        reason, _, _ = _reason(exc).partition("\nCall log:")
        return actions.told(tabs, f"[ERROR]: {reason}{_UNREACHABLE if _NO_TUNNEL in reason else ''}")


def _reason(exc: Exception) -> str:
    """Return Playwright's message without its own method names."""
    if not isinstance(exc, PlaywrightError):
        return str(exc)
    _, colon, rest = exc.message.partition(": ")
    return (rest if colon else exc.message).strip()[:_LONGEST_REASON]
