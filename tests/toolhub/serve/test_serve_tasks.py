"""The task API's life of a task: open, look, renew, close; and what malformed requests are told."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from served_hub import ServedHub, Task, error_of, eventually, open_task, text_of

from toolhub.config.models import HttpLimits

JSON = {"Content-Type": "application/json"}


@pytest.fixture(params=["tcp", "unix"])
def client(request: pytest.FixtureRequest, hub: ServedHub) -> Iterator[httpx2.Client]:
    """The TCP port and the unix socket serve the same API."""
    with hub.client(unix=request.param == "unix") as opened:
        yield opened


def test_a_task_is_opened_listed_shown_renewed_and_closed(client: httpx2.Client) -> None:
    answer = client.post("/v1/tasks", json={"id": "t1", "run": "r1", "labels": {"x": "y"}, "lease_s": 60})
    assert answer.status_code == 201
    assert answer.json() == {"id": "t1", "run": "r1", "servers": ["echo"], "lease_s": 60}
    (listed,) = client.get("/v1/tasks").json()["tasks"]
    shown = client.get("/v1/tasks/t1").json()
    assert listed["id"] == shown["id"] == "t1" and shown["run"] == "r1" and 0 < shown["lease_seconds"] <= 60
    assert client.post("/v1/tasks/t1/renew").json() == {"lease_s": 60}
    assert client.delete("/v1/tasks/t1").status_code == 204
    assert client.get("/v1/tasks").json() == {"tasks": []}


def test_an_empty_body_opens_a_task_with_an_id_and_the_configured_lease(client: httpx2.Client) -> None:
    opened = client.post("/v1/tasks").json()
    assert opened["id"].startswith("task-") and opened["lease_s"] == 900
    client.delete(f"/v1/tasks/{opened['id']}")


def test_closing_twice_or_what_never_was_is_no_error(client: httpx2.Client) -> None:
    client.post("/v1/tasks", json={"id": "t1"})
    for path in ("/v1/tasks/t1", "/v1/tasks/t1", "/v1/tasks/never"):
        assert client.delete(path).status_code == 204


def test_closing_a_task_ends_its_processes(hub: ServedHub, client: httpx2.Client) -> None:
    with open_task(client) as task:
        pid = int(text_of(task.call("pid")))
        (server,) = (one for one in hub.processes() if one.pid == pid)
        client.delete(task.path)
        assert not server.is_alive


def test_an_id_that_is_taken_is_refused(client: httpx2.Client) -> None:
    with open_task(client, id="t1"):
        error = error_of(client.post("/v1/tasks", json={"id": "t1"}), 422)
        assert error["type"] == "ConfigError" and "'t1' is already open" in error["message"]


@pytest.mark.parametrize("method, rest", [("GET", ""), ("POST", "/renew"), ("POST", "/warm"), ("GET", "/tools")])
def test_an_unknown_task_is_gone(client: httpx2.Client, method: str, rest: str) -> None:
    error = error_of(client.request(method, f"/v1/tasks/never{rest}"), 410)
    assert error["type"] == "TaskClosed" and "'never'" in error["message"]


def test_a_call_in_an_unknown_task_is_gone(client: httpx2.Client) -> None:
    assert error_of(Task(client, "never").call("echo", text="x"), 410)["type"] == "TaskClosed"


@pytest.mark.parametrize("body", [b"{", b"nonsense", b'{"id": "a"', b"\xff"], ids=repr)
def test_malformed_json_is_a_bad_request(client: httpx2.Client, body: bytes) -> None:
    error = error_of(client.post("/v1/tasks", content=body, headers=JSON), 400)
    assert error["type"] == "BadRequest" and "JSON" in error["message"]


@pytest.mark.parametrize(
    "body, field",
    [
        ({"lable": 1}, "lable"),
        ({"id": 7}, "id"),
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": "soon"}, "lease_s"),
        ({"labels": {"x": 1}}, "labels.x"),
        ([], "body"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(client: httpx2.Client, body: object, field: str) -> None:
    error = error_of(client.post("/v1/tasks", json=body), 422)
    assert error["message"].startswith(f"{field}: ")


def test_a_body_that_is_too_large_is_refused(client: httpx2.Client) -> None:
    pieces = (b" " * (1 << 20) for _ in range(HttpLimits().body_bytes // (1 << 20) + 1))
    assert error_of(client.post("/v1/tasks", content=pieces, headers=JSON), 413)["type"] == "BadRequest"
    assert client.get("/v1/tasks").status_code == 200


def test_a_body_that_announces_too_much_is_refused_unread(hub: ServedHub) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(hub.uds)
        connection.sendall(b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_unknown_paths_and_methods_are_refused(client: httpx2.Client) -> None:
    assert client.get("/v2/tasks").status_code == 404
    assert client.put("/v1/tasks").status_code == 405


def test_the_tools_of_a_task_are_listed_by_server(client: httpx2.Client) -> None:
    with open_task(client) as task:
        (entry,) = client.get(f"{task.path}/tools").json()["servers"]
        assert entry["name"] == "echo" and entry["error"] is None
        echo = next(tool for tool in entry["tools"] if tool["name"] == "echo")
        assert echo["server"] == "echo" and echo["input_schema"]["required"] == ["text"]
        assert echo["raw"]["inputSchema"] == echo["input_schema"]
        assert client.get(f"{task.path}/tools?server=echo").json() == {"servers": [entry]}
        assert error_of(client.get(f"{task.path}/tools?server=ecko"), 404)["near"] == ["echo"]


def test_warming_starts_every_server_and_tells_the_errors(hub: ServedHub) -> None:
    with hub.client(unix=True) as client, open_task(client, servers={"bad": {"command": "no-such-program"}}) as task:
        errors = client.post(f"{task.path}/warm").json()["errors"]
        assert list(errors) == ["bad"] and errors["bad"]["type"] == "StartError" and errors["bad"]["sent"] == "no"
        states = {slot["server"]: slot["state"] for slot in task.show()["slots"]}
        assert states["echo"] == "LIVE"


def test_statistics_count_tasks_calls_and_sessions(hub: ServedHub, client: httpx2.Client) -> None:
    before = client.get("/v1/statistics").json()
    with open_task(client, id="counted") as task:
        text_of(task.call("echo", text="x"))
        error_of(task.call("echo", "nobody"), 404)
        now = client.get("/v1/statistics").json()
        assert now["pid"] == hub.process.pid
        assert [one["id"] for one in now["tasks"]] == ["counted"]
        assert (now["calls"] - before["calls"], now["errors"] - before["errors"]) == (2, 1)
        (slot,) = now["tasks"][0]["slots"]
        assert slot["state"] == "LIVE" and slot["pid"] in [one.pid for one in hub.processes()]
        assert now["starts"] == before["starts"] + 1


@pytest.fixture
def brief(hub: ServedHub) -> Iterator[httpx2.Client]:
    """For tasks with short leases, over TCP alone."""
    with hub.client() as client:
        yield client


def open_ids(client: httpx2.Client) -> list[str]:
    return [task["id"] for task in client.get("/v1/tasks").json()["tasks"]]


def test_a_silent_task_is_closed_with_its_processes(brief: httpx2.Client) -> None:
    with open_task(brief, lease_s=0.5) as task:
        pid = int(text_of(task.call("pid")))
        eventually(lambda: task.id not in open_ids(brief))
        eventually(lambda: not Path(f"/proc/{pid}").exists())
        assert error_of(task.call("pid"), 410)["type"] == "TaskClosed"


def test_a_call_in_flight_is_a_sign_of_life(brief: httpx2.Client) -> None:
    with open_task(brief, lease_s=0.5) as task:
        assert text_of(task.call("sleep", seconds=1.8)) == "slept 1.8"
        assert task.id in open_ids(brief)


def test_renewing_keeps_a_task(brief: httpx2.Client) -> None:
    with open_task(brief, lease_s=1.5) as kept, open_task(brief, lease_s=1.5) as silent:
        eventually(lambda: brief.post(f"{kept.path}/renew").is_success and silent.id not in open_ids(brief), within=8)
        assert kept.id in open_ids(brief)
