"""Nothing is left when the hub ends, however it ends; nor when the server runs as a program of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import psutil
import pytest
from anyio import to_thread
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import TextContent

from tests.toolhub_servers.browser.browser_site import Website
from tests.toolhub_servers.browser.browsing import browser_processes, open_task
from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio

PATIENCE = 60
# Chromium ends some 2 s after the driver has noticed; the rest is for a machine that is busy with other tests.
GONE_WITHIN_S = 20.0
PROGRAM = Path(__file__).with_name("browser_hub_program.py")


async def test_a_clean_end_leaves_no_process_and_no_file(
    site: Website, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_tmp))
    monkeypatch.setattr("tempfile.tempdir", None)
    with anyio.fail_after(PATIENCE):
        async with open_shared_resources() as resources, open_task(resources, site) as task:
            await task.open("/report.csv")
            started = browser_processes()
            assert len(started) > 3 and list(short_tmp.iterdir())
        assert not any(process.is_running() and process.status() != "zombie" for process in started)
    assert list(short_tmp.iterdir()) == []


@pytest.mark.parametrize("also_driver", [False, True], ids=["hub", "hub and driver"])
async def test_a_killed_hub_leaves_no_process_and_its_files_go_with_the_next_start(
    site: Website, short_tmp: Path, monkeypatch: pytest.MonkeyPatch, also_driver: bool
) -> None:
    """With a page in an endless script, so that nothing ends because it was idle."""
    env = {**os.environ, "TMPDIR": str(short_tmp)}
    command = [sys.executable, str(PROGRAM), site.host, site.url("/endless-at-once")]
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(command, env=env, stderr=None) as hub:
            assert hub.stdout is not None
            assert (await hub.stdout.receive()).startswith(b"browsing")
            started = psutil.Process(hub.pid).children(recursive=True)
            assert len(started) > 3
            hub.send_signal(signal.SIGKILL)
            if also_driver:
                started[0].kill()
            _, left = await to_thread.run_sync(lambda: psutil.wait_procs(started, timeout=GONE_WITHIN_S))
            assert left == []
        assert list(short_tmp.iterdir())
        await browse_once(site, short_tmp, monkeypatch)
    assert list(short_tmp.iterdir()) == []


async def test_a_start_takes_nothing_from_those_who_browse(
    site: Website, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    with anyio.fail_after(PATIENCE):
        async with open_shared_resources() as resources, open_task(resources, site) as task:
            await task.open("/report.csv")
            before = sorted(short_tmp.rglob("*.csv")) + sorted(short_tmp.glob("*/chromium"))
            assert len(before) == 2
            await browse_once(site, short_tmp, monkeypatch)
            assert all(path.exists() for path in before)
            assert "- Title: Home" in await task.open("/")


async def browse_once(site: Website, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start another Chromium, with the same temporary directory, and end it."""
    monkeypatch.setenv("TMPDIR", str(tmp))
    monkeypatch.setattr("tempfile.tempdir", None)
    async with open_shared_resources() as resources, open_task(resources, site) as task:
        assert "- Title: Home" in await task.open("/")


async def test_a_hub_that_is_asked_to_end_ends_with_an_endless_page(site: Website, short_tmp: Path) -> None:
    env = {**os.environ, "TMPDIR": str(short_tmp)}
    command = [sys.executable, str(PROGRAM), site.host, site.url("/endless-at-once")]
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(command, env=env, stdin=subprocess.PIPE, stderr=None) as hub:
            assert hub.stdout is not None and hub.stdin is not None
            assert (await hub.stdout.receive()).startswith(b"browsing")
            started = psutil.Process(hub.pid).children(recursive=True)
            await hub.stdin.aclose()
            assert await hub.wait() == 0
            _, left = await to_thread.run_sync(lambda: psutil.wait_procs(started, timeout=GONE_WITHIN_S))
            assert left == []
    assert list(short_tmp.iterdir()) == []


async def test_the_program_browses_over_stdio_and_leaves_nothing(site: Website) -> None:
    arguments = ["-m", "toolhub_servers", "browser", "--allow-private", site.host]
    with anyio.fail_after(PATIENCE):
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
            result = await client.call_tool("browser_navigate", {"url": site.url()})
            (block,) = result.content
            assert isinstance(block, TextContent) and "- Title: Home" in block.text
            started = browser_processes()
            assert len(started) > 3
        _, left = await to_thread.run_sync(lambda: psutil.wait_procs(started, timeout=GONE_WITHIN_S))
        assert left == []


async def test_the_killed_program_leaves_no_process_and_its_files_go_with_the_next_start(
    site: Website, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["-m", "toolhub_servers", "browser", "--allow-private", site.host]
    env = {**os.environ, "TMPDIR": str(short_tmp)}
    with anyio.fail_after(PATIENCE):
        async with Client(StdioServerParameters(command=sys.executable, args=arguments, env=env)) as client:
            await client.call_tool("browser_navigate", {"url": site.url("/report.csv")})
            (program,) = [p for p in psutil.Process().children() if "toolhub_servers" in p.cmdline()]
            started = program.children(recursive=True)
            assert len(started) > 3 and list(short_tmp.rglob("*.csv"))
            program.kill()
            _, left = await to_thread.run_sync(lambda: psutil.wait_procs(started, timeout=GONE_WITHIN_S))
            assert left == []
        await browse_once(site, short_tmp, monkeypatch)
    assert list(short_tmp.iterdir()) == []
