"""`toolhub serve` as a process, the way its users start it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from forked_toolhub import ForkedProcess, start_toolhub
from prometheus_client.parser import text_string_to_metric_families
from real_processes import FIXTURES, PYTHON, Process, below

T = TypeVar("T")
Json = dict[str, Any]

# Warnings of the hub are errors as well.
TOOLHUB = [sys.executable, "-W", "error", "-m", "toolhub"]
STARTS_WITHIN_S = 60.0
# More of a server's config, where many tasks of a hub start a server with the SDK: its imports take half a second.
FORKED = {"spawn": "fork", "preload": ["mcp.server.stdio", "mcp.server.streamable_http", "uvicorn"]}
STOPS_WITHIN_S = 30.0


def eventually(predicate: Callable[[], T], *, within: float = 30.0) -> T:
    """Return the first true value of `predicate`: for what happens in other processes, where no event reaches us."""
    deadline = time.monotonic() + within
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"did not become true within {within} s"
        time.sleep(0.01)
    return value


def stub(script: str = "echo", **fields: Any) -> Json:
    """The config entry of a server from tests/fixtures."""
    command, *options = PYTHON
    return {"command": command, "args": [*options, str(FIXTURES / f"{script}.py")], **fields}


def write_config(folder: Path, *, name: str = "hub.yaml", **sections: Any) -> Path:
    """Write a config whose journal is in `folder`; JSON is YAML too."""
    hub = {"state_dir": str(folder / "state")} | sections.pop("hub", {})
    path = folder / name
    path.write_text(json.dumps({"hub": hub, **sections}, indent=2))
    return path


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our own without what would configure the command; colours off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLHUB_")}
    return kept | {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"} | dict(extra or {})


@dataclass
class ServedHub:
    """A running hub. `http` and `uds` are where it listens; empty if it does not listen there."""

    process: ForkedProcess | subprocess.Popen[bytes]
    log: Path
    http: str = ""
    uds: str = ""
    token: str | None = None

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def client(self, *, unix: bool = False, **options: Any) -> httpx2.Client:
        """A client of the TCP port with the hub's token, or of the unix socket without."""
        options = {"timeout": 60} | options
        if unix:
            transport = httpx2.HTTPTransport(uds=self.uds)
            return httpx2.Client(transport=transport, base_url="http://localhost", **options)
        return httpx2.Client(base_url=self.http, headers=self.headers, **options)

    def processes(self) -> list[Process]:
        """Everything that lives below the hub: its supervisor, shims and servers."""
        return below(self.process.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, within: float = STOPS_WITHIN_S) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(within)


@contextmanager
def served(
    config: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    token: str | None = None,
    command: list[str] | None = None,
) -> Iterator[ServedHub]:
    """Run `toolhub serve` until the block ends; then no process of its may be left.

    token: what the clients of this hub send; it is not passed on. command: executed instead of a forked `toolhub`.
    """
    log = config.parent / f"log-{time.monotonic_ns()}.txt"
    arguments = ["serve", "--config", str(config), "--port", "0", *options]
    process: ForkedProcess | subprocess.Popen[bytes]
    with log.open("wb") as stderr, open(os.devnull, "r+b") as null:
        if command is None:
            process = start_toolhub(
                arguments,
                env=environment(env),
                cwd=config.parent,
                stdin=null.fileno(),
                stdout=null.fileno(),
                stderr=stderr.fileno(),
            )
        else:
            process = subprocess.Popen(
                [*command, *arguments], stdin=null, stdout=null, stderr=stderr, cwd=config.parent, env=environment(env)
            )
    hub = ServedHub(process, log, token=token)
    try:
        eventually(lambda: "Ctrl-C stops" in hub.said or process.poll() is not None, within=STARTS_WITHIN_S)
        assert process.poll() is None, hub.said
        addresses = re.findall(r"task API +(\S+)", hub.said)
        hub.http = next((one.removesuffix("/v1") for one in addresses if one.startswith("http")), "")
        hub.uds = next((one.removeprefix("unix://") for one in addresses if one.startswith("unix")), "")
        yield hub
        started = hub.processes()
        if process.poll() is None:
            assert hub.stop() == 0, hub.said
        eventually(lambda: not any(one.is_alive for one in started))
    finally:
        process.kill()
        process.wait()


def text_of(answer: httpx2.Response) -> str:
    """The text of a call's result."""
    assert answer.status_code == 200, answer.text
    (block,) = answer.json()["result"]["content"]
    return str(block["text"])


def error_of(answer: httpx2.Response, status: int) -> Json:
    """The error that an answer of this status carries."""
    assert answer.status_code == status, answer.text
    error: Json = answer.json()["error"]
    return error


def metrics(client: httpx2.Client) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of /metrics by name and labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def metric(client: httpx2.Client, name: str, **labels: str) -> float:
    """One value of /metrics; 0 if it is not there."""
    return metrics(client).get((name, frozenset(labels.items())), 0.0)


class Task:
    """One open task over a client."""

    def __init__(self, client: httpx2.Client, task_id: str) -> None:
        self.id = task_id
        self.path = f"/v1/tasks/{task_id}"
        self._client = client

    def call(self, tool: str, server: str = "echo", *, timeout_s: float | None = None, **arguments: Any) -> Any:
        body: Json = {"server": server, "tool": tool, "arguments": arguments}
        if timeout_s is not None:
            body["timeout_s"] = timeout_s
        return self._client.post(f"{self.path}/calls", json=body)

    def show(self) -> Json:
        answer = self._client.get(self.path)
        assert answer.status_code == 200, answer.text
        shown: Json = answer.json()
        return shown


def new_task(client: httpx2.Client, **body: Any) -> Task:
    """A task that nobody closes."""
    answer = client.post("/v1/tasks", json=body)
    assert answer.status_code == 201, answer.text
    return Task(client, answer.json()["id"])


@contextmanager
def open_task(client: httpx2.Client, **body: Any) -> Iterator[Task]:
    task = new_task(client, **body)
    try:
        yield task
    finally:
        client.delete(task.path)
