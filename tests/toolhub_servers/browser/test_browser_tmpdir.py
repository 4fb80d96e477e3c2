"""The hub's temporary directory may not suit Chromium; it then gets another."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from toolhub_servers.browser import launcher
from toolhub_servers.browser.errors import BrowserUnavailable
from toolhub_servers.browser.launcher import find_parent
from toolhub_servers.confined import BROWSER_UID

from tests.toolhub_servers.browser.browser_site import Website
from tests.toolhub_servers.browser.browsing import open_task
from toolhub.scratch import PREFIX
from toolhub.shared_resources import open_shared_resources

PATIENCE = 120


@pytest.fixture(params=["private", "long"])
def unsuitable(request: pytest.FixtureRequest, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR that another user may not enter, or in which a socket's path is too long."""
    name = "p" if request.param == "private" else "long" * 30
    folder = short_tmp / name
    folder.mkdir(mode=0o700 if request.param == "private" else 0o711)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.anyio
async def test_chromium_starts_where_the_hubs_tmpdir_does_not_suit_it(site: Website, unsuitable: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with open_shared_resources() as resources, open_task(resources, site) as task:
            assert not (await task.open("/")).startswith("[ERROR]")
            (made,) = scratch_folders_of_this_process()
    assert not made.exists()
    assert list(unsuitable.glob(f"{PREFIX}*")) == []


def scratch_folders_of_this_process() -> list[Path]:
    """Those that it holds a lock on. Other tests run at the same time."""
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    return [Path(link) for link in links if Path(link).name.startswith(f"{PREFIX}chromium-")]


def test_where_no_temporary_folder_suits_chromium_each_is_told_with_its_reason(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, long = short_tmp / "p", short_tmp / ("long" * 30)
    private.mkdir(mode=0o700)
    monkeypatch.setattr(launcher, "temporary_folders", lambda: [private, long])
    with pytest.raises(BrowserUnavailable) as raised:
        find_parent(BROWSER_UID)
    assert f"{private} (the hub is root, so Chromium runs as uid {BROWSER_UID}, which may not enter {private})" in str(
        raised.value
    )
    assert f"{long} (its path has more than 22 bytes, too many for the sockets" in str(raised.value)
    assert str(raised.value).endswith("; set TMPDIR to another folder")
    assert find_parent(None) == private
