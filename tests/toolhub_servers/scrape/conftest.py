"""A website and pages read from it, for every test in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from toolhub_servers.scrape import readers, website
from toolhub_servers.scrape.model import PageRenderer
from toolhub_servers.scrape.pages import Pages, open_pages
from toolhub_servers.scrape.settings import PageSettings
from website.site import Site, site
from website.standins import JINA_KEY

from toolhub.shared_resources import SharedResources, open_shared_resources

__all__ = ["site"]

Open = Callable[..., Awaitable[Pages]]


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert in threads: each test has an event loop of its own, and its worker processes would take seconds to start.

    What is about the processes has its own fixture of this name, which leaves them as they are.
    """

    async def offload(function: Callable[..., Any], *args: Any, **_limits: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *args)

    monkeypatch.setattr(readers, "offload", offload)
    monkeypatch.setattr(website, "offload", offload)


@pytest.fixture
async def resources() -> AsyncIterator[SharedResources]:
    async with open_shared_resources() as resources:
        yield resources


@pytest.fixture
def opened(site: Site, resources: SharedResources) -> Open:
    """Open pages that may reach the website; Jina Reader is its stand-in, with the right key."""

    async def open_(*, renderer: PageRenderer | None = None, **options: Any) -> Pages:
        return await open_pages(resources, PageSettings.model_validate(page_options(site, **options)), renderer)

    return open_


def page_options(site: Site, **options: Any) -> dict[str, Any]:
    usual = {"jina_api_key": JINA_KEY, "jina_base_url": site.jina_url, "web": {"allow_private": [site.authority]}}
    return {**usual, **options}
