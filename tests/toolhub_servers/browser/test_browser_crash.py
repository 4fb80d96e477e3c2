"""Chromium, its driver or a page dies: each task is told once that its pages are lost, and goes on."""

from __future__ import annotations

import gc

import anyio
import psutil
import pytest

from tests.toolhub_servers.browser.browsing import Open, Task, browser_processes, chromium_roots, statistics
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

PATIENCE = 60
LOST = "[ERROR]: The browser was restarted and its pages are lost (state_lost); navigate again."


async def assert_told_once(task: Task) -> None:
    assert await task.call("snapshot") == LOST
    assert "- Title: Home" in await task.open("/")


async def test_after_a_crash_of_chromium_each_task_is_told_once(browser: Open, resources: SharedResources) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("one") as one, browser("two") as two, browser("three") as three:
            await one.open("/")
            await two.open("/")
            (root,) = chromium_roots()
            root.kill()
            await assert_told_once(one)
            await assert_told_once(two)
            assert "- Title: Home" in await three.open("/")  # it had nothing to lose
            assert (await statistics(resources)).contexts == 3
            (new,) = chromium_roots()
            assert new.pid != root.pid


async def test_a_crash_during_a_call_is_told_by_that_call(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/")
            told: list[str] = []

            async def wait() -> None:
                told.append(await task.open("/never"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await task.site.hanging.wait()
                chromium_roots()[0].kill()
            assert told == [LOST]
            assert "- Title: Home" in await task.open("/")


async def test_the_death_of_the_driver_is_a_crash_like_any_other(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("one") as one, browser("two") as two:
            await one.open("/")
            await two.open("/")
            (driver,) = [process for process in browser_processes() if "run-driver" in process.cmdline()]
            driver.kill()
            await assert_told_once(one)
            await assert_told_once(two)
    gc.collect()  # asyncio reports now what nobody has asked for, and that would fail the test


async def test_a_page_whose_process_dies_costs_its_tab_only(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("one") as one, browser("two") as two:
            await two.open("/clicks")
            others = {process.pid for process in renderers()}
            await one.open("/")
            for process in renderers():
                if process.pid not in others:
                    process.kill()
            told = await one.call("tabs", action="list")
            while "crashed; its tab was closed" not in told:
                told = await one.call("tabs", action="list")
            assert 'button "clicked"' in await two.click('button "Press me"')
            assert "- Title: Home" in await one.open("/")


def renderers() -> list[psutil.Process]:
    return [process for process in browser_processes() if "--type=renderer" in process.cmdline()]
