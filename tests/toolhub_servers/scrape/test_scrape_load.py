"""What is large or hostile costs its own task something and the others nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from toolhub_servers.scrape.model import PageUnreadable
from toolhub_servers.scrape.pages import Pages
from toolhub_servers.scrape.readers import Converter
from toolhub_servers.scrape.settings import PageSettings
from toolhub_servers.scrape.website import scrape_website
from website import documents, standins
from website.site import Site

pytestmark = pytest.mark.anyio

Open = Callable[..., Awaitable[Pages]]
# Generous: two cores may be shared with anything. Converting in the loop takes several seconds.
LONGEST_GAP_S = 1.0


@pytest.fixture
def workers() -> None:
    """Worker processes, as they are."""


@asynccontextmanager
async def responsive() -> AsyncIterator[None]:
    """Fail if the event loop stood still for long meanwhile."""
    gaps: list[float] = []

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(0.01)
            gaps.append(time.monotonic() - before)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            yield
            tasks.cancel_scope.cancel()
    assert max(gaps) < LONGEST_GAP_S


async def test_a_page_of_20_mb_does_not_block_the_loop(opened: Open, site: Site) -> None:
    pages = await opened(readers=["direct"])
    async with responsive():
        page = await pages.read(f"{site.url}/long.html?mb=19")
    assert page.kind == "html" and page.is_cut and len(page.text) == 2_000_000


async def test_losing_the_links_of_a_long_page_does_not_block_the_loop(opened: Open, site: Site) -> None:
    site.jina.then(standins.status(200, "A [link](http://a/b) and *more*. " * 60_000))
    pages = await opened(readers=["jina"])
    async with responsive():
        assert "](http" not in await scrape_website(pages, f"{site.url}/article")


async def test_a_document_that_never_ends_is_given_up_in_time() -> None:
    converter = Converter(PageSettings(convert_s=3))
    async with responsive():
        with pytest.raises(PageUnreadable, match="not done within 3 s|memory|ended the process that it ran in"):
            await converter.page(documents.hostile_pdf(), "application/pdf", "http://a/b.pdf")


async def test_a_document_that_takes_all_memory_is_given_up() -> None:
    body = documents.zip_bomb(600 << 20)
    converter = Converter(PageSettings(convert_bytes=300 << 20))
    async with responsive():
        with pytest.raises(
            PageUnreadable, match="memory|MemoryError|bad_alloc|error code: 12|ended the process that it ran in"
        ):
            await converter.page(body, "application/zip", "http://a/b.zip")


async def test_after_a_hostile_document_the_next_is_read(opened: Open, site: Site) -> None:
    converter = Converter(PageSettings(convert_s=0.2))
    with anyio.fail_after(30), pytest.raises(PageUnreadable):
        await converter.page(documents.hostile_pdf(), "application/pdf", "http://a/b.pdf")
    assert "17 million" in (await (await opened(readers=["direct"])).read(f"{site.url}/report.pdf")).text
