"""The order of the layers, seen from outside: trace > authorize > cassette > deadline > cache > coalesce >
retry > admission > dispatch."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, echo
from running import Running

from toolhub import Overloaded, ToolNotFound
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.layers import stack

pytestmark = pytest.mark.anyio


def test_the_first_layer_of_a_stack_is_the_outermost():
    def named(name: str) -> Any:
        return lambda inner: [name, inner]

    handler: Any = "handler"
    built: Any = stack(named("a"), named("b"))(handler)
    assert built == ["a", ["b", "handler"]]


async def test_a_tool_that_is_switched_off_is_refused_even_when_there_is_no_place():
    pause = Pausing()
    rules = {"tools": {"deny": ["format_disk"]}}
    hub = a_hub(MemoryServer(pause=pause), limits={"concurrency": 1, "queue": 0}, memory=rules)
    async with hub, hub.task() as task, anyio.create_task_group() as tasks:
        Running(tasks, task.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ToolNotFound, match="switched off"):
            await task.call("memory", "format_disk")
        with pytest.raises(Overloaded):
            await task.call("memory", "pause")
        pause.go.set()


async def test_a_server_that_is_not_configured_is_refused_with_near_names():
    async with a_hub(MemoryServer(echo=echo)) as hub, hub.task() as task:
        with pytest.raises(ToolNotFound, match="did you mean 'memory'"):
            await task.call("memroy", "echo")


async def test_a_replay_queues_again_so_it_held_no_place_meanwhile():
    order: list[str] = []
    may_die = anyio.Event()

    async def work(arguments) -> Any:
        order.append(arguments["name"])
        if len(order) == 1:
            await may_die.wait()
            server.die()
            await anyio.sleep_forever()
        return text_result("done")

    server = MemoryServer(work=work)
    keys = {"concurrency": 1, "stateful": False, "tools": {"policy": {"work": {"idempotent": True}}}}
    async with a_hub(server, memory=keys) as hub, hub.task() as task, anyio.create_task_group() as tasks:
        calls = []
        for name in ("first", "second"):
            calls.append(Running(tasks, task.call, "memory", "work", {"name": name}))
            await anyio.wait_all_tasks_blocked()
        may_die.set()
        assert [(await call.wait()).text for call in calls] == ["done", "done"]
    assert order == ["first", "second", "first"]


async def test_a_replayed_call_is_counted_once():
    async def die_once(arguments) -> Any:
        if server.opened == 1:
            server.die()
            await anyio.sleep_forever()
        return text_result("done")

    server = MemoryServer(work=die_once)
    keys = {"stateful": False, "tools": {"policy": {"work": {"read_only": True}}}}
    async with a_hub(server, memory=keys) as hub, hub.task() as task:
        assert (await task.call("memory", "work")).text == "done"
        told = hub.statistics()
        assert (told.calls, told.errors, told.retries, told.starts, told.deaths) == (1, 0, 1, 2, 1)


async def test_a_call_without_a_place_holds_no_session():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause), memory={"concurrency": 2}) as hub, hub.task() as task:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                Running(tasks, task.call, "memory", "pause")
            await anyio.wait_all_tasks_blocked()
            (slot,) = task.statistics().slots
            assert (slot.in_flight, pause.inside, task.statistics().in_flight) == (2, 2, 5)
            pause.go.set()
