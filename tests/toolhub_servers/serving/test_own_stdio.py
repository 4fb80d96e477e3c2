"""Our servers' own stdio transport: real processes on pipes, files, sockets and terminals."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from toolhub_servers.serving.stdio_lines import LineReader, LineWriter

from toolhub import Hub, parse_config

SUBJECT = [sys.executable, str(Path(__file__).with_name("stdio_subject.py"))]
PATIENCE_S = 30
OPENING: list[dict[str, Any]] = [
    {
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
]
Json = dict[str, Any]


def call(number: int, tool: str, **arguments: Any) -> Json:
    return {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def lines(*messages: Json) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)


def answers(output: bytes) -> dict[int, Any]:
    """Return the text of each result, or the error, by the request's number; a line that is no JSON fails."""
    told = [json.loads(line) for line in output.splitlines()]
    return {each["id"]: text_of(each) for each in told}


def text_of(answer: Json) -> Any:
    result = answer.get("result", {})
    return result["content"][0]["text"] if "content" in result else answer.get("error", result)


def served(requests: bytes, *flags: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    given = {"input": requests} if "stdin" not in streams else {}
    return subprocess.run(
        [*SUBJECT, *flags],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": PATIENCE_S, **given, **streams},
    )


@contextmanager
def conversation() -> Iterator[subprocess.Popen[bytes]]:
    """A server that has been greeted and has answered; stderr begins behind `opened`."""
    with subprocess.Popen(
        SUBJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        try:
            assert process.stdin and process.stdout and process.stderr
            process.stdin.write(lines(*OPENING))
            assert process.stderr.readline() == b"opened\n"
            assert json.loads(process.stdout.readline())["id"] == 0
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("flags", [(), ("--uvloop",)], ids=["asyncio", "uvloop"])
def test_what_was_asked_before_the_end_of_stdin_is_answered_and_the_server_closes(flags: tuple[str, ...]) -> None:
    done = served(lines(*OPENING, *(call(number, "echo", text=str(number)) for number in range(1, 200))), *flags)
    told = answers(done.stdout)
    assert {number: told[number] for number in range(1, 200)} == {number: str(number) for number in range(1, 200)}
    assert done.returncode == 0
    assert done.stderr.splitlines() == [b"opened", b"closed"]


def test_a_call_that_does_not_end_holds_the_end_up_no_longer_than_a_moment() -> None:
    done = served(lines(*OPENING, call(1, "wait")))
    assert answers(done.stdout)[1]["message"] == "Connection closed"
    assert done.stderr.splitlines() == [b"opened", b"waiting", b"closed"]
    assert done.returncode == 0


def test_lines_that_are_no_messages_are_skipped() -> None:
    noise = b'\n\r\nnot json\n[1, 2]\n{"jsonrpc": "2.0", "id": 3}\n{"half": \n\xff\xfe\n'
    done = served(lines(*OPENING) + noise + lines(call(1, "echo", text="heard")))
    assert answers(done.stdout)[1] == "heard"
    assert len(done.stdout.splitlines()) == 2


def test_an_invalid_byte_becomes_a_replacement_character() -> None:
    done = served(lines(*OPENING, call(1, "echo", text="a?b")).replace(b"a?b", b"a\xffb"))
    assert answers(done.stdout)[1] == "a\ufffdb"


def test_the_last_line_needs_no_newline() -> None:
    done = served(lines(*OPENING, call(1, "echo", text="last")).rstrip())
    assert answers(done.stdout)[1] == "last"


def test_prints_go_to_stderr_and_children_read_nothing() -> None:
    done = served(lines(*OPENING, call(1, "chatter")))
    assert answers(done.stdout)[1] == "EOFError: EOF when reading a line"
    assert b"printed\n" in done.stderr


def test_a_result_that_cannot_be_written_costs_only_its_call() -> None:
    done = served(lines(*OPENING, call(1, "unwritable"), call(2, "echo", text="alive")))
    told = answers(done.stdout)
    assert "surrogates not allowed" in told[1]["message"]
    assert told[2] == "alive"


def test_twenty_megabytes_come_and_go_in_one_line() -> None:
    text = "0123456789abcdef" * (20 << 16)
    done = served(lines(*OPENING, call(1, "echo", text=text), call(2, "echo", text="short")))
    told = answers(done.stdout)
    assert told[1] == text
    assert told[2] == "short"


def test_stdin_may_be_a_file_and_stdout_too(tmp_path: Path) -> None:
    asked, told = tmp_path / "asked", tmp_path / "told"
    text = "long enough for several writes " * 20_000
    asked.write_bytes(lines(*OPENING, call(1, "echo", text=text)))
    with asked.open("rb") as source, told.open("wb") as sink:
        done = served(b"", stdin=source, stdout=sink)
    assert done.returncode == 0
    assert answers(told.read_bytes())[1] == text


def test_stdin_may_be_the_null_device() -> None:
    done = served(b"", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, b"")


def test_one_socket_may_be_both() -> None:
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen(SUBJECT, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL) as process,
    ):
        theirs.close()
        ours.settimeout(PATIENCE_S)
        ours.sendall(lines(*OPENING, call(1, "echo", text="by socket")))
        ours.shutdown(socket.SHUT_WR)
        assert answers(b"".join(iter(lambda: ours.recv(1 << 16), b"")))[1] == "by socket"
        assert process.wait(PATIENCE_S) == 0


def test_stdout_may_be_stderr_too_and_prints_do_not_fail() -> None:
    text = "x" * 500_000
    requests = lines(*OPENING, call(1, "chatter"), call(2, "echo", text=text))
    done = served(requests, stderr=subprocess.STDOUT)
    told = answers(b"\n".join(line for line in done.stdout.splitlines() if line.startswith(b"{")))
    assert told[2] == text
    assert b"printed\n" in done.stdout
    assert done.returncode == 0


def test_a_terminal_serves_as_well_and_keeps_its_mode() -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(SUBJECT, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL) as process:
            os.write(ours, lines(*OPENING, call(1, "echo", text="typed")) + b"\x04")
            assert process.wait(PATIENCE_S) == 0
        assert os.get_blocking(theirs)
        shown = os.read(ours, 1 << 16)
        assert b'"text":"typed"' in shown
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_pipe_is_blocking_again_when_the_server_has_ended() -> None:
    told, sink = os.pipe()
    try:
        assert served(lines(*OPENING), stdout=sink).returncode == 0
        assert os.get_blocking(sink)
    finally:
        os.close(told)
        os.close(sink)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)])
def test_a_signal_closes_what_is_open_although_a_call_is_under_way(number: int, status: int) -> None:
    with conversation() as process:
        assert process.stdin and process.stderr
        process.stdin.write(lines(call(1, "wait")))
        assert process.stderr.readline() == b"waiting\n"
        process.send_signal(number)
        assert b"closed\n" in process.stderr.read()
        assert process.wait(PATIENCE_S) == status


def test_a_client_that_closes_its_end_ends_the_server() -> None:
    with conversation() as process:
        assert process.stdin and process.stdout
        process.stdout.close()
        process.stdin.write(lines(call(1, "echo", text="to nobody")))
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.anyio
async def test_a_hub_calls_a_server_over_it(tmp_path: Path) -> None:
    entry = {"command": SUBJECT[0], "args": SUBJECT[1:]}
    config = parse_config({"hub": {"state_dir": str(tmp_path)}, "servers": {"subject": entry}}, environ={})
    with anyio.fail_after(PATIENCE_S):
        async with Hub(config) as hub, hub.task("t") as task:
            assert (await task.call("subject", "echo", {"text": "by hub"})).text == "by hub"


@pytest.fixture
async def ends() -> AsyncIterator[tuple[int, int]]:
    """The reading and the writing end of a pipe."""
    source, sink = os.pipe()
    yield source, sink
    os.close(source)
    os.close(sink)


@pytest.mark.anyio
async def test_senders_wait_for_a_client_that_does_not_read_and_every_line_arrives_whole(ends: tuple[int, int]) -> None:
    writer = LineWriter(ends[1], on_broken=lambda: None)
    sent: list[int] = []

    async def send(number: int) -> None:
        await writer.send(str(number).encode() * 100_000 + b"\n")
        sent.append(number)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(50, 90):
                tasks.start_soon(send, number)
            await anyio.wait_all_tasks_blocked()
            assert 0 < len(sent) < 10
            reader = LineReader(ends[0])
            arrived = [await reader.receive() for _ in range(40)]
        await writer.drain()
        reader.end()
    assert {line[:2] for line in arrived} == {str(number).encode() for number in range(50, 90)}
    assert {len(line) for line in arrived} == {200_000}


@pytest.mark.anyio
async def test_who_gives_up_waiting_to_send_has_sent_nothing(ends: tuple[int, int]) -> None:
    writer, reader = LineWriter(ends[1], on_broken=lambda: None), LineReader(ends[0])
    with anyio.fail_after(PATIENCE_S):
        await writer.send(b"x" * (2 << 20) + b"\n")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, b"given up\n")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, b"next\n")
            assert len(await reader.receive()) == 2 << 20
            assert await reader.receive() == b"next"
        await writer.drain()
        reader.end()


@pytest.mark.anyio
async def test_what_nobody_wants_yet_stays_in_the_pipe(ends: tuple[int, int]) -> None:
    reader = LineReader(ends[0])
    with anyio.fail_after(PATIENCE_S):
        os.write(ends[1], b"one\ntwo\n")
        assert await reader.receive() == b"one"
        os.write(ends[1], b"three\n")
        await anyio.wait_all_tasks_blocked()
        os.set_blocking(ends[0], False)
        assert os.read(ends[0], 100) == b"three\n"
        assert await reader.receive() == b"two"
    reader.end()
