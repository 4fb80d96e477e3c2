"""What a page takes of the hub's disk and memory has an end, and only that page feels it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from toolhub_servers.browser import BrowserSettings, downloads, open_renderer
from toolhub_servers.web.errors import Unreachable

from tests.toolhub_servers.browser.browser_site import Website
from tests.toolhub_servers.browser.browsing import Open, Task
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

PATIENCE = 60
LIMIT = 400 << 20
NO_MEMORY = f"used more than {LIMIT} bytes of memory, the limit of a page (max_page_bytes)"


@pytest.mark.parametrize("path", ["/hungry-script", "/hungry-buffers", "/hungry-worker"])
async def test_a_page_that_takes_memory_without_end_costs_its_tab_and_nobody_else(browser: Open, path: str) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("hungry", max_page_bytes=LIMIT) as task, browser("other", max_page_bytes=LIMIT) as other:
            await other.open("/clicks")
            told = [await task.open(path)]
            while "its tab was closed" not in told[-1]:
                told.append(await task.call("tabs", action="list"))
            assert f"The page {task.site.url(path)} {NO_MEMORY}; its tab was closed." in told[-1]
            assert 'button "clicked"' in await other.click('button "Press me"')
            assert "- Title: Home" in await task.open("/")


async def test_a_page_that_takes_memory_without_end_is_not_rendered(resources: SharedResources, site: Website) -> None:
    renderer = await open_renderer(resources, BrowserSettings(allow_private=[site.host], max_page_bytes=LIMIT))
    with anyio.fail_after(PATIENCE), pytest.raises(Unreachable) as caught:
        await renderer.render(site.url("/hungry-buffers"), timeout=PATIENCE)
    assert NO_MEMORY in str(caught.value)


async def test_a_file_without_end_is_given_up_when_it_is_too_large(browser: Open, site: Website) -> None:
    site.flooded = anyio.Event()
    with anyio.fail_after(PATIENCE):
        async with browser(max_download_bytes=1 << 20) as task:
            await task.open("/flood")
            told = await told_of_flood(task)
            assert "The file flood.bin was not kept: it has more than 1048576 bytes (max_download_bytes)." in told
            await site.flooded.wait()


async def test_a_file_that_would_fill_the_disk_is_given_up(
    browser: Open, site: Website, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "LEAST_FREE_BYTES", 1 << 60)
    site.flooded = anyio.Event()
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/flood")
            assert f"less than {1 << 60} bytes of the disk would be left free" in await told_of_flood(task)
            await site.flooded.wait()


async def test_a_file_beyond_the_number_that_a_task_may_have_is_not_loaded(
    browser: Open, site: Website, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "FILES_PER_TASK", 0)
    site.flooded = anyio.Event()
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/flood")
            assert "this task has 0 files already" in await told_of_flood(task)
            await site.flooded.wait()


async def told_of_flood(task: Task) -> str:
    told = await task.click('link "Flood"')
    while "flood.bin" not in told:
        told = await task.call("tabs", action="list")
    return told


async def test_what_was_given_up_leaves_no_file(
    browser: Open, site: Website, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    with anyio.fail_after(PATIENCE):
        async with browser(max_download_bytes=1 << 20, max_contexts=5) as task:  # a Chromium of its own, in that folder
            await task.open("/flood")
            await told_of_flood(task)
            (artifacts,) = short_tmp.glob("*/artifacts")
            while list(artifacts.iterdir()):
                await task.call("tabs", action="list")
