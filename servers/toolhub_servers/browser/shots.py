"""Screenshots that are small enough for a model's message."""

from __future__ import annotations

from typing import Literal

from playwright.async_api import Page

from toolhub_servers.browser.errors import BrowserError
from toolhub_servers.browser.settings import BrowserSettings

# Models scale taller pictures down until the text cannot be read.
MAX_HEIGHT = 6000
_JPEG_QUALITIES = (80, 50, 20)

Format = Literal["png", "jpeg"]


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
