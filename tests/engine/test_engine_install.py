"""An installation is whole or begun anew, and one at a time. What is installed here is a file."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from testbed import third_party
from testbed.engine import install
from testbed.engine.install import EngineSetupError


def writes(text: str) -> Callable[[Path, install._Lock], None]:
    def fill(folder: Path, _: install._Lock) -> None:
        folder.mkdir()
        (folder / "file").write_text(text)

    return fill


def test_it_goes_where_the_other_servers_of_the_tests_are() -> None:
    assert install.cache_directory() == third_party.cache_directory()


def test_what_is_complete_is_not_installed_again(tmp_path: Path) -> None:
    install._ensure(tmp_path / "it", writes("first"))
    install._ensure(tmp_path / "it", writes("second"))
    assert (tmp_path / "it" / "file").read_text() == "first"


def test_an_aborted_attempt_is_removed(tmp_path: Path) -> None:
    def fails(folder: Path, _: install._Lock) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise EngineSetupError("no network")

    with pytest.raises(EngineSetupError, match="no network"):
        install._ensure(tmp_path / "it", fails)
    install._ensure(tmp_path / "it", writes("whole"))
    assert {path.name for path in (tmp_path / "it").iterdir()} == {"file", ".complete"}


def test_two_at_once_install_once(tmp_path: Path) -> None:
    begun, may_go_on = Event(), Event()

    def waits(folder: Path, lock: install._Lock) -> None:
        begun.set()
        assert may_go_on.wait(20)
        writes("first")(folder, lock)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(install._ensure, tmp_path / "it", waits)
        assert begun.wait(20)
        second = threads.submit(install._ensure, tmp_path / "it", writes("second"))
        may_go_on.set()
        first.result(20), second.result(20)
    assert (tmp_path / "it" / "file").read_text() == "first"


def test_a_program_that_outlives_its_installer_keeps_the_next_one_waiting(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "print('up', flush=True); input()"]
    with install._locked(tmp_path / "it") as lock:
        orphan = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[lock.fd])
        assert orphan.stdout is not None and orphan.stdout.readline() == "up\n"
    with open(f"{tmp_path / 'it'}.lock") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        orphan.communicate("\n")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_failed_program_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    with install._locked(tmp_path / "it") as lock, pytest.raises(EngineSetupError, match="(?s)failed with 3.*reason"):
        install._run([sys.executable, "-c", "print('reason'); raise SystemExit(3)"], lock)


def test_too_little_disk_is_told_before_anything_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "NEEDED_BYTES", 10**18)
    with pytest.raises(EngineSetupError, match=r"1000000000\.0 GB .* are free"):
        install._check_disk(tmp_path)
