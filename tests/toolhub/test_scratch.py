"""Folders of processes that have ended are swept away, and nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolhub.scratch import PREFIX, Scratch, sweep


@pytest.fixture(autouse=True)
def tmpdir_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_folder_in_use_stays_and_one_that_nobody_holds_goes(tmp_path: Path) -> None:
    used = Scratch("used")
    (used.path / "file").touch()
    abandoned = tmp_path / f"{PREFIX}abandoned-1"
    (abandoned / "profile").mkdir(parents=True)
    sweep()
    assert list(tmp_path.iterdir()) == [used.path] and (used.path / "file").exists()
    used.remove()
    used.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_process_that_has_ended_goes(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Scratch("child")
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1
    sweep()
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    """Anybody may put a link with such a name where everybody may write."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (tmp_path / f"{PREFIX}link-1").symlink_to(precious)
    (tmp_path / f"{PREFIX}file-1").touch()
    sweep()
    assert (precious / "file").exists() and len(list(tmp_path.iterdir())) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_another_user_is_not_touched(tmp_path: Path) -> None:
    theirs = tmp_path / f"{PREFIX}theirs-1"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    sweep()
    assert theirs.exists()


def test_a_folder_is_the_owners_alone(tmp_path: Path) -> None:
    scratch = Scratch("one")
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    scratch.remove()
