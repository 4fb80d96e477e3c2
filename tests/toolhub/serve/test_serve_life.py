"""The hub as a process: how it starts, how it ends, and what it leaves behind, which is nothing."""

from __future__ import annotations

import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from in_process import run_main
from served_hub import (
    ServedHub,
    environment,
    error_of,
    eventually,
    new_task,
    open_task,
    served,
    stub,
    text_of,
    write_config,
)
from toolhub_command import refused

from toolhub.cli import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, servers={"echo": stub()})


@pytest.fixture
def uds(tmp_path: Path) -> str:
    return str(tmp_path / "hub.sock")


def begin_sleep(client: httpx2.Client, pool: ThreadPoolExecutor, seconds: float) -> Future[httpx2.Response]:
    """A call that is being executed."""
    task = new_task(client)
    task.call("pid")
    running = pool.submit(task.call, "sleep", seconds=seconds)
    eventually(lambda: task.show()["slots"][0]["in_flight"] == 1, within=30)
    return running


def refusal_of(config: Path, *options: str) -> str:
    """What a hub that does not start says; it must be one line, and no traceback."""
    done = run_main(main, ["toolhub", "serve", "--config", str(config), *options], env=environment())
    message = refused(done)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_ends_servers_and_socket_after_calls_have_their_answers(
    config: Path, uds: str, number: signal.Signals
) -> None:
    with served(config, "--uds", uds) as hub, hub.client() as client, ThreadPoolExecutor(1) as pool:
        running = begin_sleep(client, pool, 0.5)
        started = hub.processes()
        assert len(started) == 3 and Path(uds).exists()
        assert hub.stop(number) == 0
        assert text_of(running.result()) == "slept 0.5"
        assert not Path(uds).exists() and not any(process.is_alive for process in started)
        assert "Traceback" not in hub.said


def test_sighup_is_ignored_with_a_line_and_ends_no_call(config: Path) -> None:
    with served(config) as hub, hub.client() as client, ThreadPoolExecutor(1) as pool:
        running = begin_sleep(client, pool, 0.5)
        started = hub.processes()
        hub.process.send_signal(signal.SIGHUP)
        eventually(lambda: "SIGHUP is ignored" in hub.said, within=30)
        assert text_of(running.result()) == "slept 0.5"
        assert accepts(hub) and all(process.is_alive for process in started)


def test_sighup_during_the_drain_does_not_cut_it_short(config: Path) -> None:
    with served(config) as hub, hub.client() as client, ThreadPoolExecutor(1) as pool:
        running = begin_sleep(client, pool, 2)
        hub.process.send_signal(signal.SIGTERM)
        eventually(lambda: not accepts(hub), within=30)
        assert hub.stop(signal.SIGHUP, within=30) == 0
        assert text_of(running.result()) == "slept 2"


def test_a_call_that_takes_longer_than_the_drain_is_given_up(tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"echo": stub()}, hub={"drain_s": 1})
    with served(config) as hub, hub.client() as client, ThreadPoolExecutor(1) as pool:
        running = begin_sleep(client, pool, 60)
        assert hub.stop(within=30) == 0
        error = error_of(running.result(), 503)
        assert error["type"] == "HubClosed" and "may or may not have been executed" in error["message"]
        assert "Traceback" not in hub.said


def test_a_second_signal_forces_the_end(config: Path) -> None:
    with served(config) as hub, hub.client() as client, ThreadPoolExecutor(1) as pool:
        running = begin_sleep(client, pool, 60)
        started = hub.processes()
        hub.process.send_signal(signal.SIGINT)
        eventually(lambda: not accepts(hub), within=30)
        assert hub.stop(signal.SIGINT, within=30) == 130
        eventually(lambda: not any(process.is_alive for process in started), within=30)
        assert running.exception(30) is not None


def accepts(hub: ServedHub) -> bool:
    try:
        return httpx2.get(f"{hub.http}/healthz").is_success
    except httpx2.TransportError:
        return False


def test_a_killed_hub_leaves_no_process(config: Path, uds: str) -> None:
    with served(config, "--uds", uds) as hub, hub.client() as client:
        new_task(client).call("pid")
        started = hub.processes()
        assert len(started) == 3
        hub.process.kill()
        eventually(lambda: not any(process.is_alive for process in started), within=30)


def test_what_cannot_be_listened_on_is_one_clear_line(config: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        expected = {
            f"cannot listen on 127.0.0.1:{port}: Address already in use; another program has the port": [
                "--port",
                port,
            ],
            "cannot listen on 192.0.2.1:0": ["--host", "192.0.2.1", "--port", "0"],
            "cannot listen on the host '127.0.0.1:80'": ["--host", "127.0.0.1:80", "--port", "0"],
            f"there is no folder {tmp_path}/a/b; create it": ["--port", "0", "--uds", str(tmp_path / "a" / "b" / "s")],
            f"cannot listen on {tmp_path}: it is a folder": ["--port", "0", "--uds", str(tmp_path)],
            "precious.txt: a file that is not a socket exists there": ["--port", "0", "--uds", str(precious)],
            "AF_UNIX path too long": ["--port", "0", "--uds", str(tmp_path / ("x" * 120))],
        }
        for text, options in expected.items():
            assert text in refusal_of(config, *options)
    assert precious.read_text() == "mine"


def test_a_dead_hub_s_socket_is_replaced_and_a_living_one_s_is_not(config: Path, uds: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(uds)
        dead.listen()
    with served(config, "--uds", uds) as hub, hub.client(unix=True) as client:
        assert client.get("/healthz").json()["pid"] == hub.process.pid
        assert f"another hub is listening on {uds}" in refusal_of(config, "--port", "0", "--uds", uds)
        assert client.get("/healthz").is_success


def test_a_hub_that_is_ending_does_not_take_its_successor_s_socket_away(tmp_path: Path, uds: str) -> None:
    config = write_config(tmp_path, servers={"echo": stub()}, hub={"drain_s": 120})
    with served(config, "--uds", uds) as old, old.client(timeout=120) as client, ThreadPoolExecutor(1) as pool:
        task = new_task(client)
        server = int(text_of(task.call("pid")))
        os.kill(server, signal.SIGSTOP)  # so the old hub drains until we let its server answer
        running = pool.submit(task.call, "echo", text="late")
        eventually(lambda: task.show()["slots"][0]["in_flight"] == 1, within=30)
        old.process.send_signal(signal.SIGTERM)
        eventually(lambda: not accepts(old), within=30)
        with served(config, "--uds", uds) as new, new.client(unix=True) as successor:
            assert old.process.poll() is None
            os.kill(server, signal.SIGCONT)
            assert old.process.wait(30) == 0 and text_of(running.result()) == "late"
            assert successor.get("/healthz").json()["pid"] == new.process.pid


def test_two_hubs_share_a_state_directory(config: Path) -> None:
    with served(config) as one, served(config) as other, one.client() as client, open_task(client) as task:
        with other.client() as others:
            theirs = new_task(others)
            pid = text_of(task.call("pid"))
            assert text_of(theirs.call("pid")) != pid
            assert other.stop() == 0
        assert text_of(task.call("pid")) == pid


# --- the event loop -------------------------------------------------------------------------------------------------

WITHOUT_UVLOOP = """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name == "uvloop":
                raise ModuleNotFoundError("No module named 'uvloop'", name="uvloop")

    sys.meta_path.insert(0, Blocker())
    from toolhub.cli import main
    main()
"""


def maps_uvloop(hub: ServedHub) -> bool:
    return "uvloop" in Path(f"/proc/{hub.process.pid}/maps").read_text()


@pytest.fixture(params=["installed", "missing"])
def on_loop(request: pytest.FixtureRequest, config: Path) -> Iterator[tuple[ServedHub, bool]]:
    """A hub with uvloop, or one that has none, and which of the two it is."""
    is_installed = request.param == "installed"
    command = None if is_installed else [sys.executable, "-W", "error", "-c", textwrap.dedent(WITHOUT_UVLOOP)]
    with served(config, command=command) as hub:
        yield hub, is_installed


def test_uvloop_is_used_where_it_is_installed_and_not_needed(on_loop: tuple[ServedHub, bool]) -> None:
    hub, is_installed = on_loop
    assert maps_uvloop(hub) is is_installed
    with hub.client() as client, open_task(client) as task:
        assert text_of(task.call("echo", text="x")) == "x"
