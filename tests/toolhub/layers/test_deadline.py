"""Deadlines, in virtual time: they bound everything below them, and what they end is told apart."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, echo, virtual_time
from running import Running

from toolhub import CallTimeout, ProtocolViolation, TaskClosed, ToolNotFound
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.model import Call

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


async def test_a_deadline_bounds_the_wait_for_a_place_and_says_that_nothing_was_sent():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause), memory={"concurrency": 1}) as hub, hub.task() as task:
        async with anyio.create_task_group() as tasks:
            running = Running(tasks, task.call, "memory", "pause")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(CallTimeout, match="still waited in a queue") as caught:
                await task.call("memory", "pause", timeout=1.5)
            assert (caught.value.sent, caught.value.timeout) == ("no", 1.5)
            assert pause.entered == 1
            pause.go.set()
            assert (await running.wait()).text == "done"


async def test_a_deadline_bounds_the_start_of_a_server_and_says_that_nothing_was_sent():
    server = MemoryServer(echo=echo)
    server.may_open = anyio.Event()
    async with a_hub(server) as hub, hub.task() as task:
        with pytest.raises(CallTimeout) as caught:
            await task.call("memory", "echo", timeout=1.5)
        assert caught.value.sent == "no"


async def test_a_deadline_during_the_call_cancels_it_and_says_maybe():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause)) as hub, hub.task() as task:
        with pytest.raises(CallTimeout, match="may or may not") as caught:
            await task.call("memory", "pause", timeout=1.5)
        assert caught.value.sent == "maybe"
        assert (pause.entered, pause.inside) == (1, 0)


@pytest.mark.parametrize(
    ("keys", "given", "expected"),
    [
        ({}, None, 300),
        ({"call_timeout_s": 7}, None, 7),
        ({"call_timeout_s": 7, "tools": {"policy": {"pause": {"timeout_s": 3}}}}, None, 3),
        ({"call_timeout_s": 7, "tools": {"policy": {"pause": {"timeout_s": 3}}}}, 20, 20),
        ({}, 0, 0),
    ],
)
async def test_the_nearest_timeout_counts_and_is_kept_exactly(keys, given, expected):
    async with a_hub(MemoryServer(pause=Pausing()), memory=keys) as hub, hub.task() as task:
        began = anyio.current_time()
        with pytest.raises(CallTimeout) as caught:
            await task.call("memory", "pause", timeout=given)
        assert caught.value.timeout == expected
        assert anyio.current_time() - began == pytest.approx(expected)


async def test_waiting_for_a_place_counts_against_the_timeout():
    pause = Pausing()
    hub = a_hub(MemoryServer(pause=pause), memory={"concurrency": 1})
    async with hub, hub.task() as task, anyio.create_task_group() as group:
        Running(group, task.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        second = Running(group, lambda: task.call("memory", "pause", timeout=4))
        await anyio.sleep(3)
        pause.go.set()
        pause.go = anyio.Event()
        await anyio.sleep(0.5)
        assert (pause.inside, second.is_done) == (1, False)
        error = await second.wait()
        assert (type(error), error.sent) == (CallTimeout, "maybe")
        pause.go.set()


class Noting:
    """Keeps what an observer is told."""

    def __init__(self, told: list[tuple[str, str]]) -> None:
        self._told = told

    def began(self, call: Call) -> None:
        self._told.append((call.tool, "began"))

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        self._told.append((call.tool, outcome))


async def test_every_call_is_told_to_observers_when_it_begins_and_how_it_ends():
    async def refuse(arguments) -> Any:
        return text_result("no", is_error=True)

    pause, told = Pausing(), []
    async with a_hub(MemoryServer(echo=echo, refuse=refuse, pause=pause)) as hub, hub.task() as task:
        hub.observers.append(Noting(told))
        await task.call("memory", "echo")
        await task.call("memory", "refuse")
        with pytest.raises(CallTimeout):
            await task.call("memory", "pause", timeout=1.5)
        with anyio.move_on_after(1.5):
            await task.call("memory", "pause")
        assert told == [
            ("echo", "began"),
            ("echo", "ok"),
            ("refuse", "began"),
            ("refuse", "tool_error"),
            ("pause", "began"),
            ("pause", "CallTimeout"),
            ("pause", "began"),
            ("pause", "cancelled"),
        ]
        assert (task.counts.errors, task.counts.in_flight) == (2, 0)


async def test_a_call_whose_task_is_closed_ends_with_that_for_its_caller_and_for_observers() -> None:
    told: list[tuple[str, str]] = []
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause)) as hub, anyio.create_task_group() as tasks:
        task = await hub.open_task("t1")
        hub.observers.append(Noting(told))
        running = Running(tasks, task.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        await hub.close_task("t1")
        await anyio.wait_all_tasks_blocked()
        assert isinstance(running.outcome, TaskClosed)
        assert running.outcome.sent == "maybe"
        assert told == [("pause", "began"), ("pause", "TaskClosed")]


async def test_a_request_is_told_to_observers_and_counted_as_a_call_is() -> None:
    told: list[tuple[str, str]] = []
    async with a_hub(MemoryServer(echo=echo)) as hub, hub.task() as task:
        hub.observers.append(Noting(told))
        await task.request("memory", "tools/list")
        with pytest.raises(ProtocolViolation, match="has tools only"):
            await task.request("memory", "resources/list")
        with pytest.raises(ToolNotFound, match="did you mean 'memory'"):
            await task.request("memroy", "tools/list")
        assert [outcome for _, outcome in told] == [
            "began",
            "ok",
            "began",
            "ProtocolViolation",
            "began",
            "ToolNotFound",
        ]
        assert {name for name, _ in told} == {"tools/list", "resources/list"}
        assert (task.counts.calls, task.counts.errors, task.counts.in_flight) == (3, 2, 0)


async def test_a_call_to_an_unknown_server_is_refused_whatever_its_timeout() -> None:
    async with a_hub(MemoryServer(echo=echo)) as hub, hub.task() as task:
        for timeout in (None, 0.0, 5.0):
            with pytest.raises(ToolNotFound, match="no server named 'nowhere'"):
                await task.call("nowhere", "echo", timeout=timeout)
        assert task.counts.outcomes == {"ToolNotFound": 3}
