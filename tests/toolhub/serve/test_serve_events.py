"""A hub says what happens to its servers and to itself, on stderr as it is started by default."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
from served_hub import ServedHub, error_of, eventually, metric, new_task, served, stub, text_of, write_config
from toolhub_command import Shell

SECRET = "sk-a-secret-of-the-tests"


def said(hub: ServedHub, pattern: str) -> re.Match[str]:
    """Wait until a line of the hub's log matches."""
    return eventually(lambda: re.search(pattern, hub.said), within=30)


def test_a_server_s_start_death_and_restart_are_said_with_task_pid_and_calls(tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"echo": stub()})
    with served(config) as hub, hub.client() as client, ThreadPoolExecutor(1) as pool:
        task = new_task(client, id="t1")
        pid = int(text_of(task.call("pid")))
        said(hub, r"INFO +toolhub.servers: server 'echo' of task 't1' is starting\n")
        said(hub, rf"INFO +toolhub.servers: server 'echo' of task 't1' is ready after [\d.]+ s \(pid {pid}\)")
        running = pool.submit(task.call, "sleep", seconds=60)
        eventually(lambda: task.show()["slots"][0]["in_flight"] == 1, within=30)
        os.kill(pid, signal.SIGKILL)
        error_of(running.result(), 502)
        died = rf"WARNING toolhub.servers: server 'echo' of task 't1' \(pid {pid}, calls in flight: t1-2\) "
        said(hub, died + "was killed by signal 9")
        pid = int(text_of(task.call("pid")))
        said(hub, r"server 'echo' of task 't1' is starting again after 1 death or failed start")
        os.kill(pid, signal.SIGKILL)
        said(hub, rf"server 'echo' of task 't1' \(pid {pid}, no call in flight\) was killed by signal 9")
        assert metric(client, "toolhub_session_deaths_total", server="echo") == 2
        assert client.get("/readyz").json()["broken_servers"] == []  # the next call starts it


def test_a_failed_start_is_said_with_its_last_stderr_lines_and_without_secrets(tmp_path: Path) -> None:
    noisy = ["-c", "import os, sys; sys.exit('cannot log in with ' + os.environ['API_KEY'])"]
    entry = stub() | {"args": noisy, "env": {"API_KEY": SECRET}, "restart": {"max_deaths": 1}}
    config = write_config(tmp_path, servers={"bad": entry})
    with served(config, "--uds", str(tmp_path / "hub.sock")) as hub, hub.client() as client:
        task = new_task(client, id="t1")
        error_of(task.call("x", "bad"), 502)
        bad = "WARNING toolhub.servers: server 'bad' of task 't1' "
        said(hub, bad + r"did not start: .*exited with 1(.*\n)+ +cannot log in")
        (broken,) = client.get("/readyz").json()["broken_servers"]
        assert (broken["server"], broken["state"], broken["deaths"]) == ("bad", "failing", 1)
        error_of(task.call("x", "bad"), 502)
        said(hub, bad + r"is given up after 2 deaths: no start for 60 s")
        error_of(task.call("x", "bad"), 503)
        (broken,) = client.get("/readyz").json()["broken_servers"]
        assert (broken["state"], broken["deaths"], broken["task"]) == ("given_up", 2, "t1")
        assert "cannot log in with ***" in broken["last_error"] and broken["since"] > 0
        assert metric(client, "toolhub_session_deaths_total", server="bad") == 2
        assert metric(client, "toolhub_server_broken", server="bad", state="given_up") == 1
        shown = Shell(tmp_path)("tasks", "--hub", f"unix://{hub.uds}").stdout
        assert "servers that do not work now" in shown and "bad: given up for " in shown
        assert "2 deaths, last in task t1" in shown and "    cannot log in with ***" in shown
        assert SECRET not in hub.said + shown + client.get("/readyz").text


def test_who_has_no_token_is_not_told_which_servers_are_broken(tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"bad": stub("exits_at_once")})
    with served(config, "--token", "the-token", token="the-token") as hub, hub.client() as client:
        error_of(new_task(client).call("x", "bad"), 502)
        assert [one["server"] for one in client.get("/readyz").json()["broken_servers"]] == ["bad"]
        assert httpx2.get(f"{hub.http}/readyz").json() == {"ready": True}


def test_the_hub_says_when_it_is_ready_drains_and_has_stopped(tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"echo": stub()}, hub={"drain_s": 1})
    with served(config) as hub, hub.client() as client, ThreadPoolExecutor(1) as pool:
        said(hub, rf"the hub is ready at {hub.http} \(pid {hub.process.pid}\)")
        task = new_task(client)
        running = pool.submit(task.call, "sleep", seconds=60)
        eventually(lambda: any(slot["in_flight"] for slot in task.show()["slots"]), within=30)
        assert hub.stop(within=30) == 0
        error_of(running.result(), 503)
        said(hub, r"got SIGTERM: the hub stops; 1 running requests have 1 s to end")
        said(hub, r"WARNING .*1 requests were still running after 1 s \(hub.drain_s\) and are cancelled")
        said(hub, r"the hub has stopped")
