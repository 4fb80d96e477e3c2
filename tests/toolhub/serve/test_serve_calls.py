"""Calls over the task API: results, every error with its status, streams, and hanging up."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from served_hub import Json, ServedHub, Task, error_of, eventually, open_task, served, stub, text_of, write_config

from toolhub.wire import NDJSON


def test_a_result_comes_as_the_server_wrote_it(task: Task) -> None:
    assert task.call("structured").json() == {
        "result": {
            "content": [{"type": "text", "text": '{"answer": 42}', "xBlockExtra": 1}],
            "structuredContent": {"answer": 42},
            "xExtra": 1,
        }
    }


def test_a_tool_s_own_failure_is_a_result(task: Task) -> None:
    answer = task.call("fail", message="no luck")
    assert answer.json()["result"]["isError"] is True
    assert text_of(answer) == "no luck"


def test_text_of_all_languages_survives(task: Task) -> None:
    for text in ("grüße 你好 🙂", "\u2028\u2029\x00\x7f", "a" * 100_000):
        assert text_of(task.call("echo", text=text)) == text


def test_an_unknown_server_is_not_found_and_near_names_are_told(task: Task) -> None:
    error = error_of(task.call("echo", "ecco"), 404)
    assert error["type"] == "ToolNotFound" and error["near"] == ["echo"]
    assert "did you mean 'echo'?" in error["message"]


def test_a_timeout_says_that_the_call_may_have_been_executed(task: Task) -> None:
    task.call("pid")
    error = error_of(task.call("sleep", seconds=60, timeout_s=0.3), 504)
    assert error["type"] == "CallTimeout" and error["sent"] == "maybe" and error["timeout"] == 0.3


def test_a_server_that_dies_is_a_lost_session_with_its_exit_code(task: Task) -> None:
    error = error_of(task.call("die", code=7), 502)
    assert error["type"] == "SessionLost" and error["exit_code"] == 7
    assert error["sent"] == "maybe" and error["state_lost"] is True
    assert error["server"] == "echo" and error["tool"] == "die"
    assert text_of(task.call("counter")) == "1"


def test_a_server_that_does_not_start_says_that_nothing_was_sent(hub: ServedHub) -> None:
    with hub.client(unix=True) as client, open_task(client, servers={"bad": {"command": "no-such-program"}}) as task:
        error = error_of(task.call("x", "bad"), 502)
    assert error["type"] == "StartError" and error["sent"] == "no" and "not found on PATH" in error["message"]


@pytest.mark.parametrize(
    "body, field",
    [({"tool": "echo"}, "server"), ({"server": "echo", "tool": "x", "argments": {}}, "argments"), ({}, "server")],
    ids=str,
)
def test_a_call_with_a_wrong_field_names_it(client: httpx2.Client, task: Task, body: Json, field: str) -> None:
    error = error_of(client.post(f"{task.path}/calls", json=body), 422)
    assert error["message"].startswith(f"{field}: ")


@pytest.mark.parametrize("timeout", [0, -1, "soon", True], ids=repr)
def test_a_timeout_is_a_positive_number(client: httpx2.Client, task: Task, timeout: object) -> None:
    body = {"server": "echo", "tool": "pid", "timeout_s": timeout}
    assert error_of(client.post(f"{task.path}/calls", json=body), 422)["message"].startswith("timeout_s: ")


# --- overload -------------------------------------------------------------------------------------------------------


def test_a_full_hub_refuses_at_once_and_says_when_to_come_back(tmp_path: Path) -> None:
    limits = {"concurrency": 1, "queue": 0, "max_tasks": 1}
    config = write_config(tmp_path, servers={"echo": stub()}, limits=limits)
    with served(config) as hub, hub.client() as client, open_task(client) as task, ThreadPoolExecutor(1) as pool:
        task.call("pid")
        running = pool.submit(task.call, "sleep", seconds=60)
        eventually(lambda: task.show()["slots"][0]["in_flight"] == 1)
        for answer in (task.call("pid"), client.post("/v1/tasks")):
            error = error_of(answer, 429)
            assert error["type"] == "Overloaded" and error["sent"] == "no"
            assert int(answer.headers["Retry-After"]) >= 1
        client.delete(task.path)
        assert running.result().status_code == 410


# --- streams --------------------------------------------------------------------------------------------------------


def lines_of(client: httpx2.Client, task: Task, tool: str, server: str = "echo", **arguments: object) -> Iterator[Json]:
    body = {"server": server, "tool": tool, "arguments": arguments}
    with client.stream("POST", f"{task.path}/calls", json=body, headers={"Accept": NDJSON}) as answer:
        assert answer.status_code == 200 and answer.headers["Content-Type"] == NDJSON
        yield from map(json.loads, answer.iter_lines())


@pytest.mark.parametrize("steps", [3, 200, 2000])
def test_a_stream_gives_log_and_progress_in_order_before_the_result(
    client: httpx2.Client, task: Task, steps: int
) -> None:
    log, *progress, last = lines_of(client, task, "progress", steps=steps)
    assert log == {"log": {"level": "info", "logger": "echo", "data": f"{steps} steps"}}
    assert [line["progress"]["progress"] for line in progress] == list(range(1, steps + 1))
    assert {line["progress"]["total"] for line in progress} == {steps}
    assert last["result"]["content"][0]["text"] == f"{steps} steps done"


def test_a_stream_ends_with_the_error(client: httpx2.Client, task: Task) -> None:
    *_, last = lines_of(client, task, "die", code=9)
    assert last["error"]["type"] == "SessionLost" and last["error"]["exit_code"] == 9


def test_what_is_wrong_before_the_call_is_told_in_the_stream_s_only_line(client: httpx2.Client, task: Task) -> None:
    (line,) = lines_of(client, task, "echo", "nobody")
    assert line["error"]["type"] == "ToolNotFound"


# --- hanging up -----------------------------------------------------------------------------------------------------


def begin_call(hub: ServedHub, task: Task, tool: str, *, accept: str, **arguments: object) -> socket.socket:
    """Send the request of a call and return the connection, on which the answer is still to come."""
    address = urlsplit(hub.http)
    assert address.hostname and address.port
    body = json.dumps({"server": "echo", "tool": tool, "arguments": arguments}).encode()
    connection = socket.create_connection((address.hostname, address.port), timeout=10)
    head = f"POST {task.path}/calls HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("accept", ["application/json", NDJSON], ids=["plain", "stream"])
def test_hanging_up_cancels_the_call_in_the_server(hub: ServedHub, task: Task, ledger: Path, accept: str) -> None:
    ledger.write_text("")
    with begin_call(hub, task, "ledger", accept=accept, key="begun"):
        eventually(lambda: ledger.read_text() == "begun\n")
    eventually(lambda: "cancelled" in ledger.read_text())
    eventually(lambda: task.show()["in_flight"] == 0)
    assert text_of(task.call("echo", text="still there")) == "still there"


def test_hanging_up_on_an_unread_stream_cancels_the_call(hub: ServedHub, task: Task) -> None:
    """The hub is stuck in sending when the client leaves, not in waiting for the server."""
    connection = begin_call(hub, task, "progress", accept=NDJSON, steps=200_000)
    eventually(lambda: task.show()["in_flight"] == 1)
    connection.close()
    eventually(lambda: task.show()["in_flight"] == 0, within=10)
    assert "Traceback" not in hub.said


def test_closing_a_task_ends_its_calls(client: httpx2.Client, task: Task, ledger: Path) -> None:
    ledger.write_text("")
    answers: list[httpx2.Response] = []
    caller = threading.Thread(target=lambda: answers.append(task.call("ledger", key="begun")))
    caller.start()
    eventually(lambda: ledger.read_text() == "begun\n")
    client.delete(task.path)
    caller.join(5)
    assert error_of(answers[0], 410)["type"] == "TaskClosed"
