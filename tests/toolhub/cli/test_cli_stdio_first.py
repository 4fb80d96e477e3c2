"""`toolhub stdio` tells its client first what the gateway would tell it, before the gateway is imported."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked_toolhub import ForkedProcess, piped_toolhub
from served_hub import TOOLHUB, Json, environment, eventually, stub, write_config

# Holds up the import of the gateway until the file `open` is there.
GATE = """
import sys, time
from pathlib import Path
folder = Path(__file__).parent

class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == "pydantic":
            (folder / "importing").touch()
            while not (folder / "open").exists():
                time.sleep(0.01)
        return None

sys.meta_path.insert(0, Gate())
"""
CLIENT = {"name": "raw", "version": "1"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
INITIALIZED = {"method": "notifications/initialized"}
HANDSHAKE: list[Json] = [{"id": 0, "method": "initialize", "params": HELLO}, INITIALIZED]
HANDSHAKE += [{"id": "two", "method": "tools/list"}, {"id": 3, "method": "ping"}]
MODERN: list[Json] = [
    {"id": number, "method": method, "params": {"_meta": ENVELOPE}}
    for number, method in enumerate(["server/discover", "tools/list"])
]
IN_BOTH_ERAS = pytest.mark.parametrize("requests", [HANDSHAKE, MODERN], ids=["handshake", "modern"])
CALL: Json = {"id": "call", "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hello"}}}


class RawClient:
    """Reads and writes lines of a process."""

    def __init__(self, process: ForkedProcess | subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""

    def send(self, *messages: Json) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def line(self) -> bytes:
        """Return the next line; b"" at the end of stdout."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], 60)[0], "nothing came within 60 s"
            if not (chunk := os.read(self.process.stdout.fileno(), 1 << 16)):
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def answers(self, requests: list[Json]) -> dict[Any, bytes]:
        """Send requests and return the lines that answer them, by id."""
        self.send(*requests)
        wanted = {message["id"] for message in requests if "id" in message}
        found: dict[Any, bytes] = {}
        while found.keys() != wanted:
            line = self.line()
            found[json.loads(line)["id"]] = line
        return found

    def leave(self) -> list[bytes]:
        """Close stdin; return the lines that still come."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        left = [*iter(self.line, b"")]
        assert self.process.wait(60) == 0
        return left


class Folder:
    """Where the command runs, with its state and the gate."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gate = path / "gate"
        self.gate.mkdir()
        (self.gate / "sitecustomize.py").write_text(GATE)

    @contextmanager
    def started(self, *, is_open: bool = True) -> Iterator[RawClient]:
        for name in ("open", "importing"):
            (self.gate / name).unlink(missing_ok=True)
        if is_open:
            self.open()
        own = {"XDG_STATE_HOME": str(self.path / "own"), "PYTHONPATH": str(self.gate)}
        with self._running(environment(own), is_open=is_open) as process:
            try:
                yield RawClient(process)
            finally:
                self.open()
                process.kill()

    @contextmanager
    def _running(self, env: dict[str, str], *, is_open: bool) -> Iterator[ForkedProcess | subprocess.Popen[bytes]]:
        """Only a process that the gate holds up has to do its imports itself."""
        arguments, pipe = ["stdio", "--config", "hub.yaml"], subprocess.PIPE
        with (self.path / "stderr.txt").open("wb") as errors:
            if is_open:
                with piped_toolhub(arguments, env=env, cwd=self.path, stderr=errors.fileno()) as forked:
                    yield forked
            else:
                command = [*TOOLHUB, *arguments]
                with subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=errors, cwd=self.path, env=env
                ) as executed:
                    yield executed

    def open(self) -> None:
        (self.gate / "open").touch()

    @property
    def kept(self) -> list[Path]:
        return [*(self.path / "own" / "toolhub" / "stdio").glob("*.json")]

    def learn(self, requests: list[Json]) -> dict[Any, bytes]:
        """Let a process live that keeps its answers."""
        with self.started() as client:
            found = client.answers(requests)
            client.leave()
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    write_config(tmp_path, servers={"echo": stub()})
    return Folder(tmp_path)


@pytest.mark.parametrize(
    ("servers", "hub"), [(1, {}), (2, {}), (1, {"tool_prefix": "always"}), (2, {"tools": "search"})], ids=str
)
@IN_BOTH_ERAS
def test_the_first_answers_are_those_of_the_gateway_to_the_byte(
    requests: list[Json], servers: int, hub: Json, folder: Folder
) -> None:
    write_config(folder.path, hub=hub, servers={f"server{number}": stub() for number in range(servers)})
    folder.learn(requests)
    kept = [path.rename(path.with_suffix(".aside")) for path in folder.kept]
    with folder.started() as client:  # nothing is kept for it, so the gateway answers, from what it has saved
        of_the_gateway = client.answers(requests)
        client.leave()
    for path in kept:
        path.rename(path.with_suffix(".json"))
    with folder.started(is_open=False) as client:
        assert client.answers(requests) == of_the_gateway


@IN_BOTH_ERAS
def test_the_gateway_goes_on_where_the_first_answers_end(requests: list[Json], folder: Folder) -> None:
    call = CALL if requests is HANDSHAKE else {**CALL, "params": {**CALL["params"], "_meta": ENVELOPE}}
    again = {**requests[-1], "id": "again"}
    folder.learn(requests)
    with folder.started(is_open=False) as client:
        client.answers(requests)
        client.send(call, again)
        folder.open()
        lines = [json.loads(client.line()) for _ in range(2)] + [json.loads(line) for line in client.leave()]
    assert sorted(line["id"] for line in lines) == ["again", "call"]  # and nothing is answered twice
    (called,) = (line for line in lines if line["id"] == "call")
    assert called["result"]["content"] == [{"type": "text", "text": "hello"}]
    assert (folder.path / "stderr.txt").read_text() == ""


def test_a_message_that_is_cut_in_two_by_the_hand_over_arrives_whole(folder: Folder) -> None:
    folder.learn(HANDSHAKE)
    with folder.started(is_open=False) as client:
        client.answers(HANDSHAKE)
        assert client.process.stdin is not None
        line = json.dumps({"jsonrpc": "2.0", **CALL}).encode() + b"\n"
        client.process.stdin.write(line[:30])
        client.process.stdin.flush()
        folder.open()
        # The gateway has taken over when it has started its server.
        children = Path(f"/proc/{client.process.pid}/task/{client.process.pid}/children")
        eventually(lambda: children.read_text(), within=60)
        client.process.stdin.write(line[30:])
        client.process.stdin.flush()
        assert json.loads(client.line())["id"] == "call"
        assert client.leave() == []


def test_a_client_that_only_asks_and_leaves_does_not_wait_for_the_imports(folder: Folder) -> None:
    folder.learn(HANDSHAKE)
    with folder.started(is_open=False) as client:
        client.answers(HANDSHAKE)
        eventually(lambda: (folder.gate / "importing").exists())
        assert client.leave() == []


def test_ctrl_c_ends_it_before_the_gateway_is_there(folder: Folder) -> None:
    folder.learn(HANDSHAKE)
    with folder.started(is_open=False) as client:
        client.answers(HANDSHAKE)
        eventually(lambda: (folder.gate / "importing").exists())
        client.process.send_signal(signal.SIGINT)
        assert client.process.wait(60) == 130
    assert (folder.path / "stderr.txt").read_text() == ""


def test_an_unequal_client_is_answered_by_the_gateway(folder: Folder) -> None:
    other = [{**HANDSHAKE[0], "params": {**HELLO, "clientInfo": {"name": "other", "version": "1"}}}, *HANDSHAKE[1:]]
    folder.learn(HANDSHAKE)
    with folder.started(is_open=False) as client:
        client.send(*other)
        folder.open()
        assert {json.loads(client.line())["id"] for _ in range(3)} == {0, "two", 3}
        client.leave()
    folder.learn(HANDSHAKE)  # again, because the servers' saved answers have changed
    for requests in (other, HANDSHAKE):
        with folder.started(is_open=False) as client:
            client.answers(requests)


def test_a_client_hears_when_the_gateway_would_have_said_something_else(folder: Folder) -> None:
    folder.learn(HANDSHAKE)
    (path,) = folder.kept
    path.write_text(path.read_text().replace(r"\"name\":\"echo\"", r"\"name\":\"other\""))
    with folder.started(is_open=False) as client:
        assert b'"other"' in client.answers(HANDSHAKE)["two"]
        folder.open()
        assert json.loads(client.line())["method"] == "notifications/tools/list_changed"
        client.leave()


def test_a_config_that_became_wrong_is_refused_before_anything_is_said(folder: Folder) -> None:
    folder.learn(HANDSHAKE)
    (folder.path / "hub.yaml").write_text("servers: {echo: {comand: python}}")
    with folder.started() as client:
        assert client.line() == b"" and client.process.wait(60) == 2
    assert "unknown key 'comand'" in (folder.path / "stderr.txt").read_text()


def with_variable(folder: Folder) -> None:
    write_config(folder.path, servers={"echo": stub(env={"A": "${SOME_NAME:-}"})})


def touch(folder: Folder) -> None:
    os.utime(folder.path / "server.py")


def forget(folder: Folder) -> None:
    for path in (folder.path / "state" / "answers").iterdir():
        path.unlink()


def edit(folder: Folder) -> None:
    write_config(folder.path, servers={"echo": stub(tools={"deny": ["echo"]})})


@pytest.mark.parametrize("change", [touch, forget, edit])
def test_nothing_is_told_early_after_a_change(change: Callable[[Folder], None], folder: Folder) -> None:
    command = stub()
    script = Path(command["args"][-1])
    (folder.path / "server.py").write_text(f"import runpy, sys\nsys.path.insert(0, {str(script.parent)!r})\n")
    with (folder.path / "server.py").open("a") as file:
        file.write(f"runpy.run_path({str(script)!r}, run_name='__main__')\n")
    entry = {**command, "args": [*command["args"][:-1], str(folder.path / "server.py")]}
    write_config(folder.path, servers={"echo": entry})
    folder.learn(HANDSHAKE)
    assert kept_answers(folder)
    change(folder)
    assert not kept_answers(folder)


def test_nothing_is_told_early_with_another_variable(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with_variable(folder)
    folder.learn(HANDSHAKE)
    assert kept_answers(folder)
    monkeypatch.setenv("SOME_NAME", "value")
    assert not kept_answers(folder)


def kept_answers(folder: Folder) -> dict[str, str]:
    """What the next process would tell early."""
    from toolhub.catalog.first_answers import FirstAnswers

    (path,) = folder.kept
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.path)
        patch.setenv("XDG_STATE_HOME", str(folder.path / "own"))
        return FirstAnswers(path).read()


@pytest.mark.parametrize(
    "servers",
    [
        {"echo": stub(share="call")},
        {"echo": stub(env={"WHO": "${task.id}"})},
        {"echo": stub(), "broken": stub("exits_at_once")},
    ],
    ids=["share: call", "a value of the task", "a server that does not start"],
)
def test_what_a_start_must_find_out_is_not_kept(servers: Json, folder: Folder) -> None:
    write_config(folder.path, servers=servers)
    folder.learn(HANDSHAKE)
    assert folder.kept == []
