"""Render pages for readers: the HTML after scripts ran. Each page has a context of its own."""

from __future__ import annotations

import anyio
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolhub.owned import Held
from toolhub.shared_resources import SharedResources
from toolhub_servers.browser.chromium import CLOSE_S
from toolhub_servers.browser.errors import BrowserError, Refused
from toolhub_servers.browser.guard import PublicRules, checked_url, refusal, target_of
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.browser.shared import Lent, SharedBrowser, open_shared
from toolhub_servers.web.errors import Forbidden, Unreachable, WebTimeout

# Pages that go on loading (advertisements, long polls) have their text by then.
QUIET_S = 5.0
MAX_HTML_CHARS = 20 << 20


class BrowserRenderer:
    """Use `open_renderer()`. Any number of tasks may use it at once."""

    def __init__(self, shared: SharedBrowser, settings: BrowserSettings) -> None:
        self._shared = shared
        self._settings = settings

    async def render(self, url: str, *, timeout: float) -> str:
        """Return the HTML of a page after its scripts, whatever its status.

        timeout: seconds for everything, with waiting for a free context. Raises Forbidden, Unreachable (also if there
        is no browser, or the address is a download), WebTimeout.
        """
        rules = PublicRules.allowing(self._settings.allow_private)
        try:
            with anyio.fail_after(timeout):
                async with self._shared.render_places:
                    return await self._rendered(checked_url(url, rules), rules)
        except Refused as exc:
            raise Forbidden(str(exc)) from exc
        except (TimeoutError, PlaywrightTimeout) as exc:
            raise WebTimeout(f"{url} was not rendered within {timeout:g} s") from exc
        except (BrowserError, PlaywrightError) as exc:
            raise Unreachable(f"{url} was not rendered: {exc}") from exc

    async def _rendered(self, url: str, rules: PublicRules) -> str:
        lent = await self._shared.lend(
            rules,
            is_render=True,
            locale=self._settings.locale,
            user_agent=self._settings.user_agent,
            accept_downloads=False,
            service_workers="block",
        )
        try:
            return await _html(lent, url, rules)
        except PlaywrightError as exc:
            if "crash" in exc.message and (reason := lent.value.chromium.memory.reason()):
                raise BrowserError(f"it {reason}") from exc
            raise
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await lent.aclose()


async def _html(lent: Held[Lent], url: str, rules: PublicRules) -> str:
    context = lent.value.context
    page = await context.new_page()
    context.on("page", _close)
    try:
        await page.goto(url, wait_until="domcontentloaded", timeout=0)
    except PlaywrightError:
        _raise_refusal(page, url, rules)
        raise
    _raise_refusal(page, url, rules)
    with anyio.move_on_after(QUIET_S):
        await page.wait_for_load_state("networkidle", timeout=0)
    return (await page.content())[:MAX_HTML_CHARS]


async def _close(page: Page) -> None:
    """Close a tab that a page opened."""
    try:
        await page.close()
    except PlaywrightError:
        pass  # it was closed with its context


def _raise_refusal(page: Page, url: str, rules: PublicRules) -> None:
    for target in (target_of(url), target_of(page.url)):
        if target is not None and target in rules.refused:
            raise refusal(target)


async def open_renderer(resources: SharedResources, settings: BrowserSettings) -> BrowserRenderer:
    """Return a renderer on the hub's browser; Chromium starts with the first page."""
    return BrowserRenderer(await open_shared(resources, settings), settings)
