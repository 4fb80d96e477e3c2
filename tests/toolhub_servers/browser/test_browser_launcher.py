"""What Chromium is told: all that Playwright says, with our words added to its lists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from toolhub_servers.browser import BrowserSettings
from toolhub_servers.browser import chromium as chromium_module
from toolhub_servers.browser.errors import BrowserUnavailable
from toolhub_servers.browser.launcher import NEEDLESS, Launcher
from toolhub_servers.confined import BROWSER_UID

from tests.toolhub_servers.browser.browsing import Open, browser_processes, chromium_roots

PATIENCE = 45


def told(launcher: Launcher, *arguments: str) -> list[str]:
    return subprocess.run([launcher.path, *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_list_is_added_to_and_the_profile_moved_and_all_else_passed_on(tmp_path: Path) -> None:
    chromium = tmp_path / "a 'chromium"
    chromium.write_text(f"#!{sys.executable}\nimport sys\nprint(*sys.argv[1:], sep='\\n')\n")
    chromium.chmod(0o755)
    playwrights = tmp_path / "profile of playwright"
    playwrights.mkdir()
    folder = tmp_path / "a folder"
    folder.mkdir()
    asked = ["--first=a b", "--disable-features=One,Two", f"--user-data-dir={playwrights}", "--js-flags=$HOME *", ""]
    assert told(Launcher(folder, str(chromium)), *asked) == [
        "--first=a b",
        "--disable-features=One,Two," + ",".join(NEEDLESS),
        f"--user-data-dir={folder}/profile",
        "--js-flags=$HOME *",
        "",
    ]
    assert not playwrights.exists()


def test_where_no_program_can_be_run_chromium_is_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A temporary directory that is mounted `noexec`."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert Launcher(tmp_path, "/usr/bin/chromium").path == "/usr/bin/chromium"
    assert "set TMPDIR to another folder" in caplog.text


@pytest.mark.anyio
async def test_a_page_costs_no_processes_but_its_own(browser: Open) -> None:
    """Not those of hidden pages: beside the page's there is one that Chromium keeps for the next page."""
    with anyio.fail_after(PATIENCE):
        async with browser(max_contexts=9) as task:  # a Chromium of its own
            await task.open("/")
            (root,) = chromium_roots()
            (features,) = [argument for argument in root.cmdline() if argument.startswith("--disable-features=")]
            assert set(NEEDLESS) < set(features.partition("=")[2].split(","))
            assert len([p for p in browser_processes() if "--type=renderer" in p.cmdline()]) <= 2


@pytest.mark.anyio
async def test_chromium_is_never_root_and_has_its_own_sandbox(browser: Open) -> None:
    with anyio.fail_after(PATIENCE):
        async with browser(max_contexts=10) as task:  # a Chromium of its own
            await task.open("/")
            roots = chromium_roots()
            assert roots and not any("--no-sandbox" in root.cmdline() for root in roots)
            for process in browser_processes():
                if "run-driver" not in process.cmdline():
                    assert 0 not in process.uids(), process.cmdline()
            (renderer, *_) = [p for p in browser_processes() if "--type=renderer" in p.cmdline()]
            assert is_filtered(renderer.pid)


def is_filtered(pid: int) -> bool:
    """Whether it has a seccomp filter, which is a part of Chromium's sandbox."""
    return "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()


def test_a_root_that_cannot_be_somebody_else_runs_chromium_only_if_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(chromium_module, "uid_exists", lambda uid: False)
    with pytest.raises(BrowserUnavailable, match="run the hub as an ordinary user, .* option sandbox: false"):
        chromium_module.account(BrowserSettings())
    assert chromium_module.account(BrowserSettings(sandbox=False)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only under a root hub does Chromium have a uid of its own")
def test_nothing_that_root_runs_can_be_changed_by_chromium(tmp_path: Path) -> None:
    uid = BROWSER_UID
    folder = tmp_path / "folder"
    folder.mkdir()
    launcher = Launcher(folder, "/usr/bin/chromium", uid=uid)
    own = {Path(launcher.artifacts), Path(launcher.home), Path(launcher.tmpdir)}
    assert {path for path in folder.iterdir() if path.stat().st_uid == uid and path.is_dir()} >= own
    for path in (folder, Path(launcher.path), Path(launcher.programs)):
        assert path.stat().st_uid == os.geteuid() and not path.stat().st_mode & 0o022
