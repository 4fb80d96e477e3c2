"""Forged messages: from the code to the agent, and from an agent that was taken over to the hub."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

import anyio
import pytest
from toolhub_sandbox import Display, Execution, FileError, SandboxError, SandboxLost, SandboxUnavailable
from toolhub_sandbox.inside.frames import MAX_HEAD, encode
from toolhub_sandbox.local.agent_connection import AgentConnection
from toolhub_sandbox.local.backend import _handshake
from toolhub_sandbox.local.fork_server import ForkServer
from toolhub_sandbox.local.sandbox import LocalSandbox, max_response_bytes

from tests.toolhub_sandbox.hostile.hostile_stage import (
    SMALL,
    TRIES,
    HostileStage,
    cheap_for_the_hub,
    patience,
    tried,
    value,
)
from toolhub.config import SandboxProfile

pytestmark = pytest.mark.anyio


def frame(head: Any, body: bytes = b"", *, sizes: tuple[int, int] | None = None) -> bytes:
    packed = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<II", *(sizes or (len(packed), len(body)))) + packed + body


def answer(**keys: Any) -> dict[str, Any]:
    return {"error": None, "displays": [], "parts": []} | keys


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


FORGED = {
    "a huge size": frame(b"", sizes=(0xFFFFFFFF, 0xFFFFFFFF)),
    "a head that is too long": frame(b"", sizes=(MAX_HEAD + 1, 0)),
    "a body that is too long": frame(answer(), sizes=(10, 1 << 30)),
    "no JSON": frame(b"{nonsense"),
    "no UTF-8": frame(b'{"error": "\xff"}'),
    "no object": frame([1, 2]),
    "null": frame(None),
    "no parts": frame({"error": None}),
    "parts that are no list": frame(answer(parts=7)),
    "parts that are texts": frame(answer(parts=["1"])),
    "a negative part": frame(answer(parts=[-5, 7], displays=[[False, ["a", "b"]]]), b"xx"),
    "a huge part": frame(answer(parts=[1 << 80])),
    "a part that is true": frame(answer(parts=[True]), b"x"),
    "a part that is infinite": frame(b'{"parts": [Infinity]}'),
    "a part that is no number": frame(b'{"parts": [NaN]}'),
    "parts beyond the body": frame(answer(parts=[100], displays=[[True, ["text/plain"]]]), b"x"),
    "deep nesting": frame(b'{"parts": ' + nested(100_000) + b"}"),
    "nesting that can just be read": frame(b'{"parts": [], "displays": [], "error": ' + nested(900) + b"}"),
    "an error that is a number": frame(answer(error=7)),
    "an error of numbers": frame(answer(error=[1, 2, 3])),
    "an error of two": frame(answer(error=["a", "b"])),
    "an error that is an object": frame(answer(error={"a": 1, "b": 2, "c": 3})),
    "displays that are a text": frame(answer(displays="abc")),
    "displays of numbers": frame(answer(displays=[1, 2])),
    "displays of lists": frame(answer(displays=[[True, [["text/plain"]]]], parts=[1]), b"x"),
    "displays without data": frame(answer(displays=[[True, ["text/plain"]]])),
    "data without displays": frame(answer(parts=[1]), b"x"),
    "displays in the old way": frame(answer(parts=[2]), b"[]"),
    "a bomb of JSON": frame(answer(parts=[24 << 20]), b"[" + b"{}," * (8 << 20)),
    "noise": os.urandom(1 << 20),
}


def forging(data: bytes) -> str:
    return f"{TRIES}import zlib\nattempt(channel().sendall, zlib.decompress(bytes.fromhex('{_packed(data)}')))\n"


def _packed(data: bytes) -> str:
    import zlib

    return zlib.compress(data).hex()


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED.keys())
async def test_a_forged_answer_costs_the_code_its_state_and_nobody_anything(stage: HostileStage, data: bytes) -> None:
    with patience(), cheap_for_the_hub():
        done = await stage.box.exec_code(forging(data) + "import time; time.sleep(10)")
        assert done.state == "lost"
        assert done.error is not None and done.error.name in ("WorkerDied", "MemoryLimit")
        assert await value(stage.box, "1 + 1") == 2


async def test_half_a_message_ends_at_the_timeout(stage: HostileStage) -> None:
    with patience():
        whole = frame(answer())
        done = await stage.box.exec_code(forging(whole[:-1]) + "while True: pass", timeout=0.5)
        assert done.timed_out
        assert await value(stage.box, "1 + 1") in (2, None)
        await stage.box.exec_code("pass", timeout=1)
        assert await value(stage.box, "1 + 1") == 2


async def test_an_answer_before_the_end_says_only_what_the_code_may_say(stage: HostileStage) -> None:
    head = answer(id=1, number=99, state="lost", timed_out=True, dropped=-5, event="lost", why="lies", stdout="lies")
    with patience():
        done = await stage.box.exec_code(forging(frame(head)))
    assert (done.state, done.timed_out, done.dropped_bytes, done.number) == ("kept", False, 0, 1)
    assert done.stdout == "" and done.error is None


async def test_answers_that_nobody_asked_for_are_not_taken_for_the_next_ones(stage: HostileStage) -> None:
    forged = frame(answer(displays=[[True, ["text/plain"]]], parts=[6]), b"forged")
    with patience():
        await stage.box.exec_code(forging(forged * 50))
        done = await stage.box.exec_code("'honest'")
    assert done.result in ("'honest'", "forged", None)  # it can only lie about itself
    assert (done.state, done.number) == ("kept", 2)


async def test_code_in_the_background_can_only_spoil_its_own_answers(stage: HostileStage) -> None:
    code = """
import threading
def flood():
    end = channel()
    while True:
        end.sendall(b"\\x02\\0\\0\\0\\0\\0\\0\\0{}")
threading.Thread(target=flood, daemon=True).start()
"""
    with patience(), cheap_for_the_hub():
        await stage.box.exec_code(TRIES + code)
        await stage.box.exec_code("import time; time.sleep(0.2)")
        await stage.box.exec_code("pass")
        assert (await stage.box.run_command("echo there")).stdout == "there\n"


async def test_code_cannot_reach_the_hubs_socket(stage: HostileStage) -> None:
    with patience():
        found = await tried(
            stage.box,
            """
{fd: os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in os.listdir("/proc/self/fd")
 if attempt(os.readlink, f"/proc/self/fd/{fd}") != "ENOENT"}
""",
        )
        shell = await stage.box.run_command("ls /proc/self/fd; ls /proc/$PPID/fd /proc/1/fd")
    kinds = sorted(found.values())
    assert kinds == sorted(["/dev/null", "pipe", "pipe", "socket"])
    assert shell.stdout.split() == ["0", "1", "2", "3"]  # 3 is the folder itself
    assert shell.stderr.count("Permission denied") == 2


# --- an agent that was taken over -------------------------------------------------------------------------------------

LIES: dict[str, dict[str, Any]] = {
    "no number": {},
    "a number that is a text": {"number": "x"},
    "an infinite number": {"number": float("inf")},
    "a number that is none": {"number": float("nan")},
    "an infinite drop": {"number": 1, "dropped": float("inf")},
    "an error of one": {"number": 1, "error": ["x"]},
    "an error that is true": {"number": 1, "error": True},
    "displays that are numbers": {"number": 1, "displays": [1]},
    "displays without data": {"number": 1, "displays": [[True, ["text/plain"]]]},
    "displays that are true": {"number": 1, "displays": True},
    "displays whose names are numbers": {"number": 1, "displays": [[True, [1, 2]]]},
    "a state that is a list": {"number": 1, "state": []},
    "a drop that is negative": {"number": 1, "dropped": -1},
    "a number beyond all floats": {"number": 10**400},
    "an exit code that is a text": {"code": "x", "timed_out": False, "dropped": 0},
    "an infinite exit code": {"code": float("inf"), "timed_out": False, "dropped": 0},
    "no exit code": {"timed_out": False},
}


async def answered_by(reply: bytes, call: Any, *, hangs_up: bool = False) -> Any:
    """Do `call` on a sandbox whose agent sends `reply` after the first request, and then hangs up if it should."""
    ours, theirs = socket.socketpair()
    profile = SandboxProfile.model_validate(SMALL)
    connection = AgentConnection(ours, max_body=max_response_bytes(profile))
    sandbox = LocalSandbox(
        "sbx0",
        "bare",
        profile,
        connection=connection,
        pidfd=-1,
        backend="local",
        isolation="",
        was_out_of_memory=lambda: False,
    )
    outcome: list[Any] = []

    async def ask() -> None:
        try:
            outcome.append(await call(sandbox))
        except SandboxError as exc:
            outcome.append(exc)
        connection.close("the test is over")

    async with anyio.create_task_group() as tasks:
        with theirs:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()  # an answer before the question would be ignored
            theirs.sendall(reply)
            if hangs_up:
                theirs.shutdown(socket.SHUT_WR)
            await sandbox.listen()
    return outcome[0]


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_lying_agent_loses_its_sandbox_and_raises_nothing_else(lie: dict[str, Any]) -> None:
    reply = encode({"id": 1} | lie, b"", b"")
    with patience():
        is_command = "timed_out" in lie
        outcome = await answered_by(reply, lambda box: box.run_command("x") if is_command else box.exec_code("x"))
    assert isinstance(outcome, SandboxLost)
    assert "broke the protocol" in str(outcome)


@pytest.mark.parametrize(
    "reply",
    [
        frame(b"", sizes=(0xFFFFFFFF, 0)),
        frame(b"[]"),
        frame(b'{"parts": ' + nested(100_000) + b"}"),
        frame(b'{"id": 1, "number": 1, "parts": [], "error": ' + nested(100_000) + b"}"),
        os.urandom(1000).replace(b"\0", b"\xff"),
    ],
)
async def test_an_agent_that_does_not_keep_to_the_format_loses_its_sandbox(reply: bytes) -> None:
    with patience():
        outcome = await answered_by(reply, lambda box: box.exec_code("x"))
    assert isinstance(outcome, SandboxLost)
    assert "broke the protocol" in str(outcome)


@pytest.mark.parametrize("lie", [float("nan"), float("inf"), "many", 10**400, -1, [], None, True])
async def test_numbers_of_a_lying_agent_become_numbers(lie: Any) -> None:
    reply = encode({"id": 1, "cpu_s": lie, "rss_bytes": lie, "processes": lie})
    with patience():
        told = await answered_by(reply, lambda box: box.info())
    assert (told.cpu_s, told.rss_bytes, told.processes) == (0, 0, 0)


NOT_TEXTS = [7, True, [], {}, ["denied"], [[["missing"]]], 1.5]


@pytest.mark.parametrize("problem", NOT_TEXTS, ids=str)
@pytest.mark.parametrize("call", ["get", "put"])
async def test_a_file_problem_that_is_no_text_loses_the_sandbox(problem: Any, call: str) -> None:
    reply = encode({"id": 1, "problem": problem, "reason": "x"})
    with patience():
        outcome = await answered_by(reply, lambda box: box.get("x") if call == "get" else box.put("x", b"x"))
    assert isinstance(outcome, SandboxLost)
    assert "broke the protocol" in str(outcome)


@pytest.mark.parametrize("reason", [*NOT_TEXTS, "x" * 100_000], ids=lambda reason: str(reason)[:10])
async def test_the_reason_of_a_file_problem_is_a_short_text_or_loses_the_sandbox(reason: Any) -> None:
    reply = encode({"id": 1, "problem": "other", "reason": reason})
    with patience():
        outcome = await answered_by(reply, lambda box: box.get("x"))
    assert isinstance(outcome, SandboxLost if type(reason) is not str else FileError)
    assert len(str(outcome)) < 1200


@pytest.mark.parametrize("reason", [*NOT_TEXTS, "x" * 100_000], ids=lambda reason: str(reason)[:10])
async def test_a_command_that_failed_for_no_text_loses_the_sandbox(reason: Any) -> None:
    reply = encode({"id": 1, "failed": reason})
    with patience():
        outcome = await answered_by(reply, lambda box: box.run_command("x"))
    if type(reason) is str:
        assert (outcome.exit_code, len(outcome.stderr) < 1200) == (126, True)
    else:
        assert isinstance(outcome, SandboxLost)


@pytest.mark.parametrize("why", [*NOT_TEXTS, None], ids=str)
@pytest.mark.parametrize("event", ["lost", "failed", [], {}, 7])
async def test_an_event_of_a_lying_agent_raises_nothing_but_the_loss(event: Any, why: Any) -> None:
    reply = encode({"event": event, "why": why})
    with patience():
        outcome = await answered_by(reply, lambda box: box.exec_code("x"), hangs_up=True)
    assert isinstance(outcome, SandboxLost)
    assert ("broke the protocol" in str(outcome)) == (event in ("lost", "failed"))


def deep_head(depth: int, **keys: Any) -> bytes:
    head = json.dumps(keys | {"parts": [], "why": 0})
    return frame(head.replace('"why": 0', f'"why": {nested(depth).decode()}').encode())


@pytest.mark.parametrize("depth", [10, 900, 940, 970, 985, 990, 1000, 5000])
async def test_a_deep_reason_does_not_exhaust_the_hubs_stack(depth: int) -> None:
    """The parser just reads some of these; whatever then turned them into a text could fail."""
    with patience():
        outcome = await answered_by(deep_head(depth, event="lost"), lambda box: box.exec_code("x"), hangs_up=True)
    assert isinstance(outcome, SandboxLost)
    assert "broke the protocol" in str(outcome)


async def test_only_the_first_reply_to_a_request_is_kept() -> None:
    first = encode({"id": 1, "problem": "missing", "reason": "first"})
    second = encode({"id": 1, "problem": "denied", "reason": "second"})
    with patience():
        outcome = await answered_by(first + second * 100, lambda box: box.get("x"))
    assert isinstance(outcome, FileError)
    assert outcome.problem == "missing"


@pytest.mark.parametrize("birth", [{"event": "lost"}, {"event": []}, {"why": ["x"]}, {"event": "failed", "why": {}}])
async def test_a_birth_that_is_none_makes_no_sandbox_and_leaves_no_descriptor(birth: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    connection = AgentConnection(ours, max_body=1 << 20)
    with theirs, open(os.devnull) as any_file, patience():
        opened = len(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [encode(birth)], [any_file.fileno()])
        with pytest.raises(SandboxUnavailable):
            await _handshake(connection)
        assert len(os.listdir("/proc/self/fd")) <= opened
        connection.close("the test is over")


@pytest.mark.parametrize("data", ["abc", "a", "\u00e9", ""])
def test_an_image_that_is_none_is_none(data: str) -> None:
    shown = Display({"image/png": data}, is_result=True)
    assert shown.png is None
    assert Execution(displays=(shown,)).images == ()


@pytest.mark.parametrize(
    "notice",
    [
        b"[]",
        b"7",
        b"{",
        b"\xff",
        b'{"usage": []}',
        b'{"usage": {"a": "b"}}',
        b'{"usage": {"a": true}}',
        b'{"memory": []}',
    ],
)
async def test_a_notice_that_is_none_ends_the_zygote_and_not_the_hub(notice: bytes) -> None:
    """A zygote runs nothing of the model's, but without isolation code could have its uid."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    killed: list[str] = []
    fork_server = ForkServer(ours, process=None)
    fork_server.listeners.append(killed.append)
    with ours, theirs, patience():
        theirs.send(notice)
        await fork_server.listen()
    assert fork_server.has_ended
    assert (fork_server.memory_bytes, killed) == (0, [])
