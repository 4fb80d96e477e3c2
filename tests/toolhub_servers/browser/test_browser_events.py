"""What pages do that nobody asked for: dialogs, tabs, downloads, loops. The next result tells, and nobody waits."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from toolhub_servers.browser.downloads import folder_name

from tests.toolhub_servers.browser.browsing import Open

pytestmark = pytest.mark.anyio

PATIENCE = 45


async def test_dialogs_are_dismissed_and_told(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            shown = await task.open("/dialogs")
            assert "confirmed false prompted null" in shown
            assert "- The page showed a dialog (alert), dismissed: Mind the gap" in shown
            assert "(confirm), dismissed: Sure?" in shown and "(prompt), dismissed: Name?" in shown
            assert "### Events" not in await task.call("snapshot")


async def test_a_page_that_shows_dialogs_without_end_is_closed(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/alerts")
            told = await task.click('button "Go"')
            assert "more than 10 dialogs, so its tab was closed" in told
            assert "- Title: Home" in await task.open("/")


async def test_a_page_that_asks_not_to_be_left_is_left(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/leaving")
            await task.click('button "Touch"')
            shown = await task.open("/")
            assert "- Title: Home" in shown and "asked to confirm leaving" in shown


async def test_a_new_tab_is_told_and_can_be_selected(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/blank-link")
            told = await task.click('link "Elsewhere"')
            assert "- Title: Blank" in told and "The page opened a new tab, 1;" in told
            await task.call("tabs", action="select", index=1)
            assert "On things" in await task.call("wait_for", text="On things")


async def test_a_tab_beyond_the_limit_is_closed_and_told(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(max_tabs=1) as task:
            await task.open("/blank-link")
            assert "A new tab was closed at once: there may be 1 (max_tabs)." in await task.click('link "Elsewhere"')
            assert len((await task.call("tabs", action="list")).splitlines()) == 2


async def test_a_page_that_opens_a_thousand_windows_gets_one(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("popups") as task, browser("other") as other:
            await task.open("/popups")
            button = await task.ref('button "Go"')
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: task.call("click", ref=button))
                assert "- Title: Home" in await other.open("/")
            assert len((await task.call("tabs", action="list")).splitlines()) == 3


async def test_a_script_without_end_costs_its_tab_and_nobody_else(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("endless", action_s=0.3) as task, browser("other") as other:
            await other.open("/clicks")
            await task.open("/endless")
            button = await task.ref('button "Go"')
            told = []

            async def click() -> None:
                told.append(await task.call("click", ref=button))
                told.append(await task.call("snapshot"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(click)
                assert 'button "clicked"' in await other.click('button "Press me"')
            assert any("did not respond any more, so its tab was closed" in text for text in told)
            assert "- Title: Home" in await task.open("/")


async def test_a_server_that_never_answers_costs_the_deadline_and_not_the_page(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(navigation_s=0.5) as task:
            await task.open("/")
            told = await task.open("/never")
            assert told.startswith("[ERROR]: Timeout 500ms exceeded") and "The tab is still open." in told
            assert 'heading "Welcome"' in await task.call("snapshot")
            assert "- Title: Article" in await task.open("/article")


async def test_frames_that_never_come_do_not_hide_their_page(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            shown = await task.open("/framed")
            assert 'heading "Around"' in shown and "root:" not in shown


async def test_a_download_goes_to_a_folder_that_ends_with_the_task(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(max_download_bytes=1000) as task:
            await task.open("/files")
            told = await task.click('link "Report"')
            found = re.search(r"Downloaded (.+) \(8 bytes\) to (.+)", told)
            assert found is not None
            saved = Path(found[2])
            assert saved.name == found[1] and saved.read_text() == "a,b\n1,2\n"
            assert "it has more than 1000 bytes (max_download_bytes)" in await task.click('link "Huge"')
            assert [path.name for path in saved.parent.iterdir()] == [saved.name]
        assert not saved.parent.exists()


async def test_a_download_by_its_address_is_kept_where_the_options_say(browser: Open, tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser("task/7", downloads_dir=str(tmp_path)) as task:
            for _ in range(2):
                assert "Downloaded" in await task.open("/report.csv")
        names = sorted(path.name for path in (tmp_path / folder_name("task/7")).iterdir())
        assert len(names) == 2 and names[0].endswith(" (1).csv")


async def test_a_download_replaces_no_file_and_follows_no_link(browser: Open, tmp_path: Path) -> None:
    """Not one of the same task from before its pages were closed, nor one that somebody else put there."""
    elsewhere = tmp_path / "elsewhere"
    with anyio.fail_after(PATIENCE):
        async with browser("one", downloads_dir=str(tmp_path)) as task:
            await task.open("/report.csv")
            (first,) = (tmp_path / "one").iterdir()
            first.write_text("kept")
            second = first.with_stem(f"{first.stem} (1)")
            second.symlink_to(elsewhere)
            await task.call("close")
            assert f"to {first.with_stem(f'{first.stem} (2)')}" in await task.open("/report.csv")
    assert first.read_text() == "kept" and second.is_symlink() and not elsewhere.exists()


async def test_a_page_that_asks_for_a_file_gets_none(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser() as task:
            await task.open("/upload")
            assert "this browser uploads none" in await task.click('button "Your file"')


async def test_a_mail_link_starts_no_program(browser: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chromium starts xdg-email for it without asking; the one on PATH here would leave a file."""
    for name in ("xdg-email", "xdg-open"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with anyio.fail_after(PATIENCE):
        async with browser(max_contexts=3) as task:  # a Chromium of its own, with this PATH
            await task.open("/mail")
            await task.click('link "Write"')
            for _ in range(3):
                await task.open("/")
    assert not (tmp_path / "started").exists()
