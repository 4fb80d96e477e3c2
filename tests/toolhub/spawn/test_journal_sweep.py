"""The journal: when hub, supervisor and shims died at once, the next hub removes what is left, and only that."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from killable_hub import KillableHub, another_hub
from real_processes import PYTHON, HubFactory, Process, eventually, fixture, is_supervisor, noted, pid_of

from toolhub.spawn.journal import Journal, open_journal, sweep
from toolhub.spawn.supervisor import start_time

pytestmark = pytest.mark.anyio


@pytest.fixture
def bystander() -> Iterator[Process]:
    """A process that is nobody's server."""
    with subprocess.Popen([*PYTHON, "-c", "import time; time.sleep(300)"]) as popen:
        yield Process.of(popen.pid)
        popen.kill()


def write_journal(state_dir: Path, *lines: str, hub: str = "4194999-1-1") -> Path:
    """A journal of a hub that is no more."""
    path = state_dir / "journal" / f"{hub}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def entry(process: Process, started: str | None = None) -> str:
    return json.dumps({"pid": process.pid, "start_time": started or process.started, "name": "x"})


def kill_all_that_could_clean_up(hub: KillableHub) -> None:
    """Hub, supervisor and shims: stopped first, so that none has time to do its duty."""
    helpers = [hub.process, *(process for process in hub.all if is_supervisor(process.pid))]
    assert len(helpers) == 2 + len(hub.servers)
    for process in helpers:
        process.kill(signal.SIGSTOP)
    for process in helpers:
        process.kill()


async def test_what_survived_a_crash_of_everything_is_swept_up_by_the_next_hub(
    hubs: HubFactory, tmp_path: Path
) -> None:
    specs = [fixture("ignores_eof_and_term"), fixture("echo")]
    async with another_hub(hubs.state_dir, *specs) as dead:
        stubborn, _ = dead.servers
        kill_all_that_could_clean_up(dead)
        await eventually(lambda: not dead.process.is_alive)
        assert stubborn.is_alive
        with anyio.fail_after(30):
            async with hubs():
                await eventually(lambda: not dead.alive)
        assert list((hubs.state_dir / "journal").iterdir()) == []


async def test_what_survived_is_swept_up_with_its_children(hubs: HubFactory, tmp_path: Path) -> None:
    pidfile = tmp_path / "pids"
    async with another_hub(hubs.state_dir, fixture("daemonises", env={"PIDFILE": str(pidfile)})) as dead:
        (server,) = dead.servers
        _, plain = noted(pidfile, 2)
        server.kill(signal.SIGSTOP)  # it would leave at the end of its stdin
        kill_all_that_could_clean_up(dead)
        await eventually(lambda: not dead.process.is_alive)
        sweep(hubs.state_dir / "journal")
        await eventually(lambda: not server.is_alive and not plain.is_alive)


@pytest.mark.quick
async def test_a_reused_pid_is_not_killed(bystander: Process, tmp_path: Path) -> None:
    path = write_journal(tmp_path, entry(bystander, started="1"))
    assert sweep(path.parent) == []
    assert bystander.is_alive
    assert not path.exists()


@pytest.mark.quick
async def test_a_child_that_is_recorded_as_gone_is_not_killed(bystander: Process, tmp_path: Path) -> None:
    path = write_journal(tmp_path, entry(bystander), json.dumps({"gone": bystander.pid}))
    assert sweep(path.parent) == []
    assert bystander.is_alive


@pytest.mark.quick
async def test_damaged_lines_do_not_hide_the_others(bystander: Process, tmp_path: Path) -> None:
    damaged = ["garbage", "42", "null", "[]", '"text"', '{"pid": "x"}', '{"pid": 1', '{"gone": []}', "\udcff\0", "{}"]
    lines = [line.encode("utf-8", "surrogateescape").decode("latin-1") for line in damaged]
    path = write_journal(tmp_path, *lines, entry(bystander), entry(bystander)[:12])
    assert sweep(path.parent) == [bystander.pid]
    await eventually(lambda: not bystander.is_alive)
    assert not path.exists()


@pytest.mark.quick
async def test_files_of_others_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    write_journal(tmp_path, "keep me", hub="notes")
    (tmp_path / "journal" / "a-b.txt").write_text("me too")
    assert sweep(tmp_path / "journal") == []
    assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == ["a-b.txt", "notes.jsonl"]


def other_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").chmod(0o777)


def linked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").rename(tmp_path / "real")
    (tmp_path / "journal").symlink_to(tmp_path / "real")


def writable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "journal").iterdir():
        path.chmod(0o666)


def linked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "journal").iterdir():
        path.symlink_to(path.rename(tmp_path / "real"))


@pytest.mark.quick
@pytest.mark.parametrize("change", [other_user, writable_folder, linked_folder, writable_file, linked_file])
async def test_a_journal_that_somebody_else_could_have_written_kills_nothing_and_is_a_warning(
    bystander: Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    path = write_journal(tmp_path, entry(bystander))
    change(tmp_path, monkeypatch)
    assert sweep(path.parent) == []
    assert bystander.is_alive and path.exists()
    assert "are not killed" in caplog.text


@pytest.mark.quick
async def test_a_journal_is_not_written_through_a_link_that_was_put_in_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "1-2-3.jsonl").symlink_to(tmp_path / "victim")
    Journal(tmp_path / "1-2-3.jsonl").record(1, "1", "x")
    assert (tmp_path / "victim").read_text() == "mine" and "cannot write the journal" in caplog.text


@pytest.mark.quick
async def test_a_living_hubs_children_are_left_alone(bystander: Process, tmp_path: Path) -> None:
    myself = f"{os.getpid()}-{start_time(os.getpid())}-1"
    path = write_journal(tmp_path, entry(bystander), hub=myself)
    assert sweep(path.parent) == []
    assert bystander.is_alive and path.exists()


async def test_two_hubs_with_one_state_directory_do_not_touch_each_others_children(hubs: HubFactory) -> None:
    with anyio.fail_after(20):
        async with another_hub(hubs.state_dir, fixture("echo")) as other:
            for _ in range(2):
                async with hubs(fixture("echo")) as hub, hub.task("t") as task:
                    await task.call("echo", "pid")
                    assert Process.of(pid_of(task, "echo")).is_alive
            assert len(other.alive) == len(other.all)


async def test_two_hubs_of_one_process_keep_journals_of_their_own(hubs: HubFactory) -> None:
    """The first one to leave must not take the other's record along."""
    with anyio.fail_after(30):
        async with hubs(fixture("echo")) as lasting, lasting.task("t") as task:
            await task.call("echo", "pid")
            async with hubs(fixture("echo")) as passing, passing.task("t") as other:
                await other.call("echo", "pid")
            (path,) = (hubs.state_dir / "journal").iterdir()
            assert str(pid_of(task, "echo")) in path.read_text()


async def test_a_journal_that_cannot_be_kept_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    unusable = HubFactory(tmp_path / "file" / "state")
    async with unusable.task(fixture("echo")) as task:
        assert (await task.call("echo", "echo", {"text": "works"})).text == "works"
    (record,) = (record for record in caplog.records if record.name == "toolhub.spawn.journal")
    assert record.levelno == logging.WARNING and "cannot write the journal" in record.getMessage()


@pytest.mark.quick
async def test_a_full_disk_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_journal(tmp_path / "journal") as journal:
        assert isinstance(journal, Journal) and journal._fd is not None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, journal._fd)
        os.close(full)
        journal.record(1, "1", "x")
    assert "No space left" in caplog.text


@pytest.mark.quick
async def test_a_hub_that_ended_in_order_leaves_no_journal(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo")) as task:
        await task.call("echo", "pid")
        (path,) = (hubs.state_dir / "journal").iterdir()
        (line,) = (entry for entry in map(json.loads, path.read_text().splitlines()) if "pid" in entry)
        assert line["pid"] == pid_of(task, "echo") and line["start_time"] == start_time(line["pid"])
    assert list((hubs.state_dir / "journal").iterdir()) == []
