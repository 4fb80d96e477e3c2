"""What is missing or wrong is told before anything starts, with the way out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from toolhub_servers.browser import create_server, open_renderer
from toolhub_servers.browser.chromium import environment, failure_reason, find_chromium
from toolhub_servers.browser.downloads import _copy, fit_name, folder_name
from toolhub_servers.browser.launcher import Launcher
from toolhub_servers.browser.reading import cut
from toolhub_servers.confined import BROWSER_UID

from tests.toolhub_servers.browser.browser_site import Website
from tests.toolhub_servers.browser.browsing import open_task
from toolhub.errors import MissingExtra
from toolhub.shared_resources import open_shared_resources


def test_without_chromium_the_way_to_one_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"no Chromium found: .* \(on Debian: apt-get install chromium\) or name it"):
        create_server()
    with pytest.raises(ValueError, match="executable '/no/such/chromium' is not a program"):
        create_server(executable="/no/such/chromium")


def test_chromium_is_found_by_any_of_its_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("google-chrome", "chromium-browser", "chromium"):
        (tmp_path / name).touch(0o755)
        assert find_chromium(None) == str(tmp_path / name)


@pytest.mark.anyio
async def test_without_playwright_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolhub-runtime\[browser\]'"):
        create_server()
    async with open_shared_resources() as resources:
        with pytest.raises(MissingExtra, match=r"pip install 'toolhub-runtime\[browser\]'"):
            await open_renderer(resources)


def test_importing_the_server_needs_no_playwright() -> None:
    code = "import sys; sys.modules['playwright'] = None; import toolhub_servers.browser"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("options", [{"max_tabs": 0}, {"allow_private": ["a b"]}, {"tabs": 1}, {"snapshots": "some"}])
def test_an_option_that_cannot_be_used_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        create_server(**options)


@pytest.mark.anyio
async def test_a_chromium_that_does_not_start_is_told_to_the_model(site: Website, tmp_path: Path) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with anyio.fail_after(30):
        async with open_shared_resources() as resources, open_task(resources, site, executable=str(broken)) as task:
            for _ in range(2):
                assert (await task.open("/")).startswith(f"[ERROR]: {broken} did not start: ")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "Closed\n[pid=7][err] noise\n[pid=7][err] [7:FATAL:a.cc] No usable sandbox!\n",
            "[7:FATAL:a.cc] No usable sandbox!",
        ),
        ("Closed\n[pid=7][err] noise", "Closed"),
        ("", "no reason told"),
    ],
)
def test_of_all_that_chromium_said_the_reason_is_told(message: str, told: str) -> None:
    assert failure_reason(message) == told


def test_secrets_of_the_hub_are_not_chromiums(short_tmp: Path) -> None:
    launcher = Launcher(short_tmp, "chromium")
    of_hub = {"HOME": "/home/a", "PATH": "/bin", "LC_ALL": "C", "OPENAI_API_KEY": "secret", "http_proxy": "http://x"}
    path = f"{launcher.programs}:/bin"
    assert environment(of_hub, launcher) == {"HOME": "/home/a", "PATH": path, "LC_ALL": "C", "TMPDIR": str(short_tmp)}


@pytest.mark.parametrize(
    ("suggested", "name"),
    [
        ("report.csv", "report.csv"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..", "file"),
        ("", "file"),
        ("a\x00b\n.txt", "a_b_.txt"),
        ("x" * 300 + ".pdf", "x" * 116 + ".pdf"),
    ],
)
def test_a_file_gets_a_name_that_fits_a_folder(suggested: str, name: str) -> None:
    assert fit_name(suggested) == name


def test_a_cut_says_what_is_left_out() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdef", 2, 2) == "cd\n\n[Cut: characters 2 to 4 of 6; go on with start=4.]"
    assert cut("abcdef", 2, 4) == "ef"
    assert cut("abcdef", 2, 9) == ""


def test_tasks_whose_names_are_alike_do_not_share_a_folder() -> None:
    names = [folder_name(owner) for owner in ("a:b", "a_b", "a/b", "a-b", "..", ".", "x" * 200, "x" * 201, "A")]
    assert len(set(names)) == len(names)
    assert names[1] == "a_b" and not any("/" in name or name in (".", "..") for name in names)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what Chromium cannot")
def test_a_download_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    theirs = tmp_path / "artifacts"
    theirs.mkdir()
    os.chown(theirs, BROWSER_UID, BROWSER_UID)
    (theirs / "link").symlink_to(secret)
    (theirs / "hard").hardlink_to(secret)
    for name in ("link", "hard"):
        with pytest.raises(OSError):
            _copy(theirs / name, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
