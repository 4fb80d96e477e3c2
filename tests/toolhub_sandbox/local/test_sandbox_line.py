"""The line to an agent, with a socket in the agent's place."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager

import anyio
import pytest
from running import Running
from toolhub_sandbox import SandboxLost
from toolhub_sandbox.inside.frames import FrameBuffer, encode
from toolhub_sandbox.local.agent_connection import AgentConnection

from tests.toolhub_sandbox.local.sandbox_stage import patience

pytestmark = pytest.mark.anyio

LARGE = b"x" * (4 << 20)  # more than any socket holds


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class Agent:
    """The other end: reads and writes when the test says so."""

    def __init__(self, sock):
        self._socket = sock
        self._buffer = FrameBuffer(64 << 20)
        self._got = []

    async def get(self):
        with patience():
            while not self._got:
                await anyio.wait_readable(self._socket)
                self._got += self._buffer.feed(self._socket.recv(1 << 20))
        return self._got.pop(0)

    def say(self, data):
        self._socket.send(data)

    def hang_up(self):
        self._socket.close()


@asynccontextmanager
async def connected():
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = AgentConnection(ours, max_body=1000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.listen)
        with theirs:
            yield connection, Agent(theirs), tasks
        connection.close("the test is over")


def ask(connection, tasks, *parts, **keys):
    return Running(tasks, connection.request, {"op": "x"}, *parts, **({"timeout": 20} | keys))


async def test_answers_find_those_who_asked_in_any_order():
    async with connected() as (connection, agent, tasks):
        first, second = ask(connection, tasks, b"1"), ask(connection, tasks, b"2")
        got = [await agent.get(), await agent.get()]
        for head, parts in reversed(got):
            agent.say(encode({"id": head["id"]}, b"to " + parts[0]))
        assert [(await call.wait())[1] for call in (first, second)] == [[b"to 1"], [b"to 2"]]


@pytest.mark.parametrize("number", [0, 99, -1, "1", None, True, 1.0, [1]])
async def test_answers_that_nobody_asked_for_are_nothing(number):
    async with connected() as (connection, agent, tasks):
        call = ask(connection, tasks)
        head, _ = await agent.get()
        agent.say(encode({"id": number if number is not True else 99}) + encode({"id": head["id"]}))
        assert await call.wait() == ({"id": head["id"], "parts": []}, [])
        assert not connection.has_ended


async def test_events_go_to_the_listener():
    async with connected() as (connection, agent, tasks):
        heard = []
        connection.on_event = heard.append
        call = ask(connection, tasks)
        head, _ = await agent.get()
        agent.say(encode({"event": "ready"}) + encode({"id": head["id"]}))
        await call.wait()
        assert heard == [{"event": "ready", "parts": []}]


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"\xff" * 100, "it broke the protocol"), (encode({}, b"x" * 1001), "it broke the protocol"), (b"", "it ended")],
)
async def test_whoever_waits_is_told_why_the_line_ended(data, why):
    async with connected() as (connection, agent, tasks):
        calls = [ask(connection, tasks), ask(connection, tasks)]
        await agent.get()
        agent.say(data) if data else agent.hang_up()
        for call in calls:
            outcome = await call.wait()
            assert isinstance(outcome, SandboxLost)
            assert why in str(outcome)
        assert connection.has_ended
        with pytest.raises(SandboxLost):
            await connection.request({}, timeout=1)


async def test_an_agent_that_does_not_answer_is_lost():
    async with connected() as (connection, _, tasks):
        outcome = await ask(connection, tasks, timeout=0.05).wait()
        assert isinstance(outcome, SandboxLost)
        assert "it did not answer within 0.05 s" in str(outcome)
        assert connection.has_ended


async def test_a_message_that_is_cancelled_half_way_is_sent_to_its_end_and_then_cancelled():
    async with connected() as (connection, agent, tasks):
        cancelled = []

        def cancel(number):
            cancelled.append(number)
            connection.notify({"op": "cancel", "of": number})

        call = ask(connection, tasks, LARGE, on_cancel=cancel)
        await anyio.wait_all_tasks_blocked()
        call.cancel()
        head, parts = await agent.get()
        assert (parts, await call.wait()) == ([LARGE], None)
        assert cancelled == [head["id"]]
        assert (await agent.get())[0]["of"] == head["id"]
        assert not connection.has_ended


async def test_a_notice_is_sent_as_soon_as_a_message_on_its_way_is():
    async with connected() as (connection, agent, tasks):
        call = ask(connection, tasks, LARGE)
        await anyio.wait_all_tasks_blocked()
        connection.notify({"op": "notice"})
        assert (await agent.get())[1] == [LARGE]
        assert (await agent.get())[0]["op"] == "notice"
        call.cancel()


async def test_notices_beyond_what_a_socket_holds_are_sent_in_order_once_there_is_room():
    async with connected() as (connection, agent, tasks):
        for number in range(5000):
            connection.notify({"n": number, "filler": "x" * 200})
        assert [(await agent.get())[0]["n"] for _ in range(100)] == list(range(100))
        agent.say(encode({"event": "an answer"}))
        await anyio.wait_all_tasks_blocked()
        numbers = []
        while not numbers or numbers[-1] < 4999:
            numbers.append((await agent.get())[0]["n"])
            agent.say(encode({"id": 0}))
            await anyio.lowlevel.checkpoint()
        assert numbers == list(range(100, 5000))


async def test_ending_twice_keeps_the_first_reason():
    async with connected() as (connection, _, _tasks):
        connection.close("one")
        connection.close("two")
        assert str(connection.lost_error()) == "the sandbox is gone with all that it kept: one"


async def test_a_socket_that_is_opened_while_a_line_ends_is_heard() -> None:
    """It may get the number of the one that is closed, and whoever waited for that one would then forget it."""
    ours, theirs = socket.socketpair()
    connection = AgentConnection(ours, max_body=0)
    go, told = anyio.Event(), bytearray()

    async def open_another() -> None:
        await go.wait()
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            tasks.start_soon(send_later, far)
            await anyio.wait_readable(near)
            told.extend(near.recv(10))

    async def send_later(far: socket.socket) -> None:
        await anyio.wait_all_tasks_blocked()
        far.send(b"heard")

    with theirs, anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.listen)
            tasks.start_soon(open_another)
            await anyio.wait_all_tasks_blocked()
            go.set()  # first: the other one runs before the listener, which the next line wakes
            connection.close("it was closed")
    assert told == b"heard"
    assert ours.fileno() == -1
