"""What a model gets to see of a page: its text, or a screenshot that is small enough for a message."""

from __future__ import annotations

import logging
from typing import Literal

from playwright.async_api import Page

from toolhub_servers.browser.errors import BrowserError
from toolhub_servers.browser.settings import BrowserSettings
from toolhub_servers.scrape.conversion import NoText, main_text
from toolhub_servers.web.errors import ConfinementUnavailable, ResourceLimitExceeded
from toolhub_servers.web.workers import offload

# A longer page is not a text to read, and extracting its text would take seconds.
MAX_HTML_CHARS = 4 << 20
MAX_TEXT_CHARS = 1 << 20
# For extracting from a page of that size; its visible text is known already.
EXTRACT_S = 20.0
EXTRACT_BYTES = 1 << 30
LONGEST_LINE = 1000
# If the extract is shorter than this share of the visible text, it has left out what the page is about.
LEAST_SHARE = 0.25

# Models scale taller pictures down until the text cannot be read.
MAX_HEIGHT = 6000
_JPEG_QUALITIES = (80, 50, 20)

Format = Literal["png", "jpeg"]

logger = logging.getLogger(__name__)

_HTML = "n => document.documentElement.outerHTML.slice(0, n)"
_TEXT = "n => (document.body ? document.body.innerText : '').slice(0, n)"


async def read_page(page: Page) -> str:
    """Return the main content as Markdown if it is found, else all the visible text."""
    text = str(await page.evaluate(_TEXT, MAX_TEXT_CHARS)).strip()
    if not text:
        return ""
    html = str(await page.evaluate(_HTML, MAX_HTML_CHARS))
    try:
        markdown = await offload(
            main_text, html, page.url, returns=str, raises=(NoText,), timeout=EXTRACT_S, memory_bytes=EXTRACT_BYTES
        )
    except NoText:  # trafilatura is missing
        return text
    except (ConfinementUnavailable, ResourceLimitExceeded, RuntimeError) as exc:
        logger.warning("the main text of a page was not extracted: %s", exc)
        return text
    return markdown if len(markdown) >= LEAST_SHARE * len(text) else text


def cut(text: str, limit: int, start: int = 0) -> str:
    """Return at most `limit` characters from `start` on, with a note about what was left out."""
    part = text[max(start, 0) : max(start, 0) + limit]
    end = max(start, 0) + len(part)
    if end >= len(text):
        return part
    return f"{part}\n\n[Cut: characters {max(start, 0)} to {end} of {len(text)}; go on with start={end}.]"


def shortened(text: str) -> str:
    """Return a title, an address or a message on one line and not too long; pages make them of any length."""
    line = " ".join(text[: 2 * LONGEST_LINE].split())
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."


async def take_screenshot(page: Page, settings: BrowserSettings, *, full_page: bool) -> tuple[bytes, Format]:
    """Return a PNG, or a JPEG if the PNG is too large. Raises BrowserError if that is too large too."""
    height = MAX_HEIGHT if full_page else settings.viewport_height
    picture = await _shoot(page, settings.viewport_width, height, full_page=full_page)
    if len(picture) <= settings.max_image_bytes:
        return picture, "png"
    for quality in _JPEG_QUALITIES:
        picture = await _shoot(page, settings.viewport_width, height, full_page=full_page, quality=quality)
        if len(picture) <= settings.max_image_bytes:
            return picture, "jpeg"
    way_out = "; take one of the visible part only" if full_page else ""
    raise BrowserError(f"the screenshot has {len(picture)} bytes, more than max_image_bytes{way_out}")


async def _shoot(page: Page, width: int, height: int, *, full_page: bool, quality: int | None = None) -> bytes:
    return await page.screenshot(
        full_page=full_page,
        clip={"x": 0, "y": 0, "width": width, "height": height},
        scale="css",
        type="png" if quality is None else "jpeg",
        quality=quality,
    )
