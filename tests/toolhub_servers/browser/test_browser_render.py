"""Pages rendered for the readers of pages."""

from __future__ import annotations

import anyio
import pytest
from toolhub_servers.browser import BrowserSettings, open_renderer
from toolhub_servers.browser.render import BrowserRenderer
from toolhub_servers.web.errors import Forbidden, Unreachable, WebTimeout

from tests.toolhub_servers.browser.browser_site import Website
from tests.toolhub_servers.browser.browsing import statistics
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

PATIENCE = 45


@pytest.fixture
async def renderer(resources: SharedResources, site: Website) -> BrowserRenderer:
    return await open_renderer(resources, BrowserSettings(allow_private=[site.host]))


async def test_what_scripts_wrote_is_in_the_html(renderer: BrowserRenderer, site: Website) -> None:
    with anyio.fail_after(PATIENCE):
        assert '<div id="here">Fetched by a script</div>' in await renderer.render(site.url("/scripted"), timeout=20)


async def test_pages_share_nothing_and_leave_nothing(
    renderer: BrowserRenderer, site: Website, resources: SharedResources
) -> None:
    pages: list[str] = []

    async def render() -> None:
        pages.append(await renderer.render(site.url("/storage"), timeout=30))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(render)
    assert len(pages) == 6 and all("storage null cookie" in page for page in pages)
    assert (await statistics(resources)).renders == 0


async def test_a_page_that_hangs_costs_its_time_and_its_context(
    renderer: BrowserRenderer, site: Website, resources: SharedResources
) -> None:
    with anyio.fail_after(PATIENCE):
        for path in ("/never", "/endless-at-once"):
            with pytest.raises(WebTimeout, match="was not rendered within 1 s"):
                await renderer.render(site.url(path), timeout=1)
    assert (await statistics(resources)).renders == 0


async def test_dialogs_do_not_stop_a_page(renderer: BrowserRenderer, site: Website) -> None:
    with anyio.fail_after(PATIENCE):
        assert "confirmed false prompted null" in await renderer.render(site.url("/dialogs"), timeout=20)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://169.254.169.254/", "http://localhost:9999/"])
async def test_an_address_that_is_not_public_is_forbidden(renderer: BrowserRenderer, url: str) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(Forbidden):
        await renderer.render(url, timeout=20)


async def test_a_redirect_to_a_private_address_is_forbidden(renderer: BrowserRenderer, site: Website) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(Forbidden, match=r"127\.0\.0\.1:9999 was not reached"):
        await renderer.render(site.url("/redirect?to=http://127.0.0.1:9999/"), timeout=20)


async def test_a_file_is_no_page(renderer: BrowserRenderer, site: Website) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(Unreachable, match="Download is starting"):
        await renderer.render(site.url("/report.csv"), timeout=20)
