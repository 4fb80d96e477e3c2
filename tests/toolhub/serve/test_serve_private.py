"""`toolhub serve --private`: the hub of one parent process, which ends with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked_toolhub import piped_toolhub
from real_processes import below
from served_hub import TOOLHUB, ServedHub, environment, eventually, new_task, open_task, stub, text_of


@contextmanager
def private_hub(uds: Path, *options: str) -> Iterator[ServedHub]:
    """A private hub that has said that it is ready."""
    log = uds.parent.parent / "log.txt"
    arguments = ["serve", "--private", "--uds", str(uds), *options]
    env = environment({"XDG_STATE_HOME": str(uds.parent.parent)})
    with (
        log.open("wb") as stderr,
        piped_toolhub(arguments, env=env, cwd=uds.parent.parent, stderr=stderr.fileno()) as process,
    ):
        assert process.stdout and process.stdout.readline() == b"ready\n", log.read_text()
        yield ServedHub(process, log, uds=str(uds))


@pytest.fixture
def private(tmp_path: Path) -> Iterator[ServedHub]:
    """One to be ended by the test."""
    with private_hub(tmp_path / "own" / "hub.sock") as hub:
        yield hub


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """One for the tests that only look."""
    with private_hub(tmp_path_factory.mktemp("lasting") / "own" / "hub.sock") as hub:
        yield hub


def hang_up(hub: ServedHub) -> int:
    """End the hub's stdin and return its exit code."""
    assert hub.process.stdin
    hub.process.stdin.close()
    return hub.process.wait(30)


def test_it_takes_servers_of_its_parent_and_says_nothing(lasting: ServedHub) -> None:
    with lasting.client(unix=True) as client, open_task(client, servers={"mine": stub()}) as task:
        assert text_of(task.call("echo", "mine", text="hello")) == "hello"
    assert lasting.said == ""


def test_its_socket_is_its_only_door(lasting: ServedHub) -> None:
    with lasting.client(unix=True) as client:
        assert client.get("/healthz").json()["pid"] == lasting.process.pid
    fds = [link.readlink() for link in Path(f"/proc/{lasting.process.pid}/fd").iterdir()]
    inodes = {str(fd).partition("socket:[")[2].rstrip("]") for fd in fds}
    tcp = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert not inodes & {line.split()[9] for line in tcp.splitlines() if ":" in line.split()[0]}


def test_its_tasks_have_no_lease(lasting: ServedHub) -> None:
    with lasting.client(unix=True) as client, open_task(client) as task:
        assert task.show()["lease_seconds"] is None


def test_the_end_of_its_stdin_ends_it_with_socket_and_folder(private: ServedHub) -> None:
    with private.client(unix=True) as client:
        new_task(client, servers={"mine": stub()}).call("pid", "mine")
        started = below(private.process.pid)
        assert hang_up(private) == 0
    assert not Path(private.uds).parent.exists() and not any(process.is_alive for process in started)
    assert private.said == ""


def test_it_does_not_wait_for_calls_when_its_parent_is_gone(private: ServedHub) -> None:
    with private.client(unix=True) as client:
        task = new_task(client, servers={"mine": stub()})
        task.call("pid", "mine")
        body = {"server": "mine", "tool": "sleep", "arguments": {"seconds": 60}}
        with client.stream("POST", f"{task.path}/calls", json=body, headers={"Accept": "application/x-ndjson"}):
            assert hang_up(private) == 0
    eventually(lambda: not Path(private.uds).exists())


def test_a_folder_with_other_things_in_it_is_kept(private: ServedHub) -> None:
    kept = Path(private.uds).parent / "kept.txt"
    kept.touch()
    assert hang_up(private) == 0
    assert kept.exists() and not Path(private.uds).exists()


def test_without_a_socket_it_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([*TOOLHUB, "serve", "--private"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "--private needs --uds" in done.stderr
