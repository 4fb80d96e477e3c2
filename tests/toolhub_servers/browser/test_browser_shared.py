"""One Chromium for all tasks, and nothing that one task leaves for another."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import pytest

from tests.toolhub_servers.browser.browsing import Open, chromium_roots, statistics
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

PATIENCE = 45


async def test_cookies_and_storage_are_the_tasks_own(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("one") as one, browser("two") as two:
            assert "storage null cookie" in await one.open("/storage")
            assert "storage kept cookie visit=1" in await one.open("/storage")
            assert "storage null cookie" in await two.open("/storage")


async def test_closing_forgets_cookies_and_storage(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/storage")
            assert await task.call("close") == "The browser is closed."
            assert "storage null cookie" in await task.open("/storage")


async def test_five_tasks_use_one_chromium_each_with_a_context(browser: Open, resources: SharedResources) -> None:
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            tasks = [await stack.enter_async_context(browser(f"task-{number}")) for number in range(5)]
            assert (await statistics(resources)).contexts == 0  # a context begins with the first page
            async with anyio.create_task_group() as together:
                for task in tasks:
                    together.start_soon(task.open, "/")
            assert (await statistics(resources)).contexts == 5
            assert len(chromium_roots()) == 1
        assert (await statistics(resources)).contexts == 0
        assert (await statistics(resources)).starts == 1


async def test_the_context_of_a_cancelled_call_ends_with_the_task(browser: Open, resources: SharedResources) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(task.open, "/never")
                await task.site.hanging.wait()
                tasks.cancel_scope.cancel()
            assert "- Title: Home" in await task.open("/")
        assert (await statistics(resources)).contexts == 0


async def test_one_task_more_than_there_may_be_is_told_so(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("one", max_contexts=1) as one, browser("two", max_contexts=1) as two:
            await one.open("/")
            assert await two.open("/") == (
                "[ERROR]: 1 tasks have pages open, which is the limit (max_contexts); try again later"
            )
            await one.call("close")
            assert "- Title: Home" in await two.open("/")


async def test_pages_nobody_uses_are_closed_and_the_task_is_told_once(
    browser: Open, resources: SharedResources
) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(idle_s=0.3) as task:
            await task.open("/")
            while (await statistics(resources)).contexts:
                await anyio.lowlevel.checkpoint()
            told = await task.call("snapshot")
            assert told == "[ERROR]: The browser's pages were closed after 0.3 s without use; navigate again."
            assert "- Title: Home" in await task.open("/")
