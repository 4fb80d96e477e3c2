"""The hub's end of a server's pipes: order, fairness, and nobody left waiting when it ends."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from toolhub.channel.jsonrpc import pipes as pipes_module
from toolhub.channel.jsonrpc.peer import Peer
from toolhub.channel.jsonrpc.pipes import INLINE_BYTES, StdinStream, StdoutStream

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The reader has a way of its own on asyncio."""
    return str(request.param)


Json = dict[str, Any]
LIMIT = 4 * INLINE_BYTES
LIMIT_OF_NOISE = 1 << 20


@dataclass
class Server:
    """The other ends of the pipes of a `Peer`, in the test's own hand."""

    peer: Peer
    stdout: StdoutStream
    pipes: Pair
    heard: list[str] = field(default_factory=list)
    """The methods of the notifications that arrived, and whatever else a test notes."""

    async def say(self, *messages: Any) -> None:
        """Write each message, or bytes as they are, waiting while the hub does not read."""
        data = b"".join(
            each if isinstance(each, bytes) else json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n"
            for each in messages
        )
        while data:
            try:
                data = data[os.write(self.pipes.to_hub, data) :]
            except BlockingIOError:
                await anyio.wait_writable(self.pipes.to_hub)

    async def hear(self) -> list[Json]:
        """The messages that have come so far, at least one."""
        await anyio.wait_readable(self.pipes.from_hub)
        return [json.loads(line) for line in os.read(self.pipes.from_hub, 1 << 20).splitlines()]


class Pair:
    """Two pipes: the hub's ends are called as in `Child`."""

    def __init__(self) -> None:
        self.from_hub, self.stdin = os.pipe()
        self.stdout, self.to_hub = os.pipe()
        for fd in self.all:
            os.set_blocking(fd, False)

    @property
    def all(self) -> list[int]:
        return [self.from_hub, self.stdin, self.stdout, self.to_hub]


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    """A peer on two pipes; leaving ends it."""
    pipes = Pair()
    stdout = StdoutStream(pipes, limit=LIMIT)
    try:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                far = Server(Peer(stdout, StdinStream(pipes, tasks, stdout.fail)), stdout, pipes)
                far.peer.on_raw_notification = lambda method, params: far.heard.append(method)
                await tasks.start(far.peer.run, unasked, untold)
                yield far
                tasks.cancel_scope.cancel()
    finally:
        for fd in pipes.all:
            os.close(fd)


async def unasked(context: Any, method: str, params: Mapping[str, Any] | None) -> Json:
    return {"you asked": method}


async def untold(context: Any, method: str, params: Mapping[str, Any] | None) -> None:
    raise AssertionError("notifications are shown raw")


async def noting(far: Server, name: str, params: Json | None = None) -> None:
    answer = await far.peer.send_raw_request(name, params)
    far.heard.append(f"answer to {name}, {len(answer['text'])} long")


async def test_messages_keep_their_order_around_one_that_a_thread_decodes() -> None:
    big = "x" * (2 * INLINE_BYTES)
    async with server() as far, anyio.create_task_group() as callers:
        callers.start_soon(noting, far, "first")
        await far.hear()
        await far.say({"method": "one"}, {"id": 1, "result": {"text": big}}, {"method": "two", "params": {"big": big}})
        await far.say(*[{"method": f"after {number}"} for number in range(200)])
        while len(far.heard) < 203:
            await anyio.lowlevel.checkpoint()
    answer = f"answer to first, {len(big)} long"
    assert [heard for heard in far.heard if heard != answer] == ["one", "two", *[f"after {n}" for n in range(200)]]
    assert far.heard.index(answer) <= 2  # its caller runs a round after it was resolved


async def test_any_cut_of_the_stream_gives_the_same_messages() -> None:
    stream = b'{"jsonrpc": "2.0", "method": "a"}\r\n\n  \nnoise\n{"jsonrpc": "2.0", "method": "b"}\n'
    async with server() as far:
        for byte in stream:
            await far.say(bytes([byte]))
            await anyio.lowlevel.checkpoint()
        while far.stdout.noise_lines < 1 or len(far.heard) < 2:
            await anyio.lowlevel.checkpoint()
    assert far.heard == ["a", "b"]
    assert list(far.stdout.noise) == ["noise"] and far.stdout.noise_lines == 1


async def test_an_answer_behind_a_megabyte_of_noise_takes_few_rounds_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = 0
    turn = StdoutStream._read_once

    def counted(stream: StdoutStream) -> bool:
        nonlocal rounds
        rounds += 1
        return turn(stream)

    monkeypatch.setattr(StdoutStream, "_read_once", counted)
    message = json.dumps({"jsonrpc": "2.0", "method": "notifications/done"}).encode() + b"\n"
    left = memoryview(b"this line is no JSON-RPC\n" * (LIMIT_OF_NOISE // 25) + message)
    async with server() as far:
        while left:
            await anyio.wait_writable(far.pipes.to_hub)
            left = left[os.write(far.pipes.to_hub, left[:4096]) :]
        while not far.heard:
            await anyio.sleep(0)
        assert far.heard == ["notifications/done"]
        assert far.stdout.noise_lines == LIMIT_OF_NOISE // 25
    assert rounds < 400


async def test_a_server_that_never_stops_talking_leaves_rounds_of_the_loop_to_others() -> None:
    """64 KiB of the shortest messages are in the pipe at once; they must not be taken in one round."""
    line, lengths = b'{"jsonrpc":"2.0","method":"m"}\n', []
    async with server() as far:
        count = (1 << 16) // len(line)
        await far.say(line * count)
        while len(far.heard) < count:
            lengths.append(len(far.heard))
            await anyio.lowlevel.checkpoint()
    steps = [after - before for before, after in zip(lengths, [*lengths[1:], count], strict=True)]
    assert max(steps) <= 2 * 64  # the test itself may have been a round late
    assert sum(steps) == count


async def test_requests_of_the_server_are_answered_in_between() -> None:
    async with server() as far, anyio.create_task_group() as callers:
        callers.start_soon(noting, far, "first")
        (asked,) = await far.hear()
        await far.say({"id": "s1", "method": "ping"})
        assert await far.hear() == [{"jsonrpc": "2.0", "id": "s1", "result": {"you asked": "ping"}}]
        await far.say({"id": str(asked["id"]), "result": {"text": ""}})
    assert far.heard == ["answer to first, 0 long"]


async def test_an_end_of_file_comes_after_everything_that_was_said_before_it() -> None:
    big = "x" * (2 * INLINE_BYTES)
    async with server() as far, anyio.create_task_group() as callers:
        callers.start_soon(noting, far, "first")
        await far.hear()
        await far.say({"method": "one", "params": {"big": big}}, *[{"method": "many"}] * 200)
        await far.say({"id": 1, "result": {"text": "last words"}})
        os.close(far.pipes.to_hub)
        await far.peer.ended.wait()
        far.pipes.to_hub = os.dup(far.pipes.from_hub)  # something for the end of the test to close
    assert far.heard == ["one", *["many"] * 200, "answer to first, 10 long"]


async def test_requests_wait_for_a_server_that_does_not_read_and_the_rest_leaves_at_once() -> None:
    async with server() as far, anyio.create_task_group() as callers:
        for number in range(3):
            callers.start_soon(far.peer.send_raw_request, f"r{number}", {"text": "x" * 900_000})
        await anyio.wait_all_tasks_blocked()
        assert len(far.peer._waiting) == 2  # the third has not left: the first two fill what the hub holds
        await far.peer.notify("notifications/n", None)
        heard = b""
        while heard.count(b"\n") < 4:
            await anyio.wait_readable(far.pipes.from_hub)
            heard += os.read(far.pipes.from_hub, 1 << 20)
        methods = [json.loads(line)["method"] for line in heard.splitlines()]
        assert methods[2] == "notifications/n" and sorted(methods) == ["notifications/n", "r0", "r1", "r2"]
        callers.cancel_scope.cancel()


async def test_who_waits_for_a_deaf_server_is_freed_when_the_conversation_ends() -> None:
    codes: list[int] = []

    async def ask(far: Server) -> None:
        with pytest.raises(MCPError) as caught:
            await far.peer.send_raw_request("r", {"text": "x" * 900_000})
        codes.append(caught.value.code)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as callers:
            async with server() as far:
                for _ in range(4):
                    callers.start_soon(ask, far)
                await anyio.wait_all_tasks_blocked()
                far.stdout.end()
    assert codes == [CONNECTION_CLOSED] * 4


async def test_a_server_that_asks_and_never_reads_the_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes_module, "_MOST_OVERDUE_BYTES", 1 << 20)
    questions = [{"id": number, "method": "q" * 10_000} for number in range(1000)]
    async with server() as far, anyio.create_task_group() as saying:
        saying.start_soon(far.say, *questions)
        await far.peer.ended.wait()
        assert "does not read its messages: more than 1048576 bytes" in far.stdout.failure
        saying.cancel_scope.cancel()


async def test_a_slow_server_gets_all_answers_however_many_waited_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes_module, "_MOST_OVERDUE_BYTES", 1 << 18)
    async with server() as far:
        for _ in range(8):  # together much more than may be overdue
            for _ in range(24):
                await far.peer.notify("n" * 50_000, None)
            heard = b""
            while heard.count(b"\n") < 24:
                await anyio.wait_readable(far.pipes.from_hub)
                heard += os.read(far.pipes.from_hub, 1 << 20)
        assert far.stdout.failure == ""


async def test_a_request_that_was_cancelled_before_it_left_is_never_heard_of() -> None:
    async with server() as far, anyio.create_task_group() as callers:
        for number in range(2):
            callers.start_soon(far.peer.send_raw_request, f"r{number}", {"text": "x" * 900_000})
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01) as scope:
            await far.peer.send_raw_request("given up", None)
        assert scope.cancelled_caught
        callers.start_soon(far.peer.send_raw_request, "last", None)
        heard = b""
        while b'"last"' not in heard:
            await anyio.wait_readable(far.pipes.from_hub)
            heard += os.read(far.pipes.from_hub, 1 << 20)
        assert {json.loads(line)["method"] for line in heard.splitlines()} == {"r0", "r1", "last"}
        callers.cancel_scope.cancel()


async def test_a_message_that_cannot_be_taken_ends_the_conversation_with_its_error() -> None:
    def fails(message: Any) -> bool:
        raise LookupError("a mistake of ours")

    pipes = Pair()
    os.write(pipes.to_hub, b"{}\n")
    try:
        with anyio.fail_after(30), pytest.raises(LookupError):
            await StdoutStream(pipes, limit=LIMIT).receive_loop(fails)
    finally:
        for fd in pipes.all:
            os.close(fd)


async def test_what_is_no_json_is_refused_and_leaves_no_trace_on_the_wire() -> None:
    async with server() as far, anyio.create_task_group() as callers:
        with pytest.raises(ValueError, match="object"):
            await far.peer.send_raw_request("bad", {"arguments": object()})
        callers.start_soon(far.peer.send_raw_request, "good", {"arguments": {"nan": float("nan"), "pair": (1, 2)}})
        assert await far.hear() == [
            {"jsonrpc": "2.0", "id": 2, "method": "good", "params": {"arguments": {"nan": None, "pair": [1, 2]}}}
        ]
        callers.cancel_scope.cancel()
