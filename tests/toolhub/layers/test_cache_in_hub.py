"""Equal calls and kept answers through a whole hub: what passes the limiters, and what the counters say.

The order is trace > authorize > cassette > deadline > cache > coalesce > retry > admission > dispatch.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, echo, virtual_time
from running import Running

from toolhub import CallTimeout, Hub, Overloaded, TaskClosed, ToolNotFound
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.model import CacheStatistics, LimiterStatistics

pytestmark = pytest.mark.anyio

READS = {"tools": {"policy": {name: {"read_only": True} for name in ("echo", "pause", "read")}}}
SHARED = READS | {"share": "hub"}
KEPT = SHARED | {"cache": {"scope": "hub"}}
OWN = READS | {"stateful": False}


def the_hub_s(hub: Hub) -> LimiterStatistics:
    """The limiter that every call of the hub passes."""
    return next(limiter for limiter in hub.statistics().limiters if limiter.name == "the hub")


async def test_fifty_equal_calls_of_ten_tasks_take_one_place():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause), memory=SHARED) as hub, anyio.create_task_group() as tasks:
        agents = [await hub.open_task() for _ in range(10)]
        callers = [Running(tasks, agents[n % 10].call, "memory", "pause") for n in range(50)]
        await anyio.wait_all_tasks_blocked()
        assert (the_hub_s(hub).in_use, the_hub_s(hub).waiting, pause.inside) == (1, 0, 1)
        pause.go.set()
        assert {(await caller.wait()).text for caller in callers} == {"done"}
        told = hub.statistics()
        assert (told.calls, told.errors, pause.entered) == (50, 0, 1)
        assert (told.coalescing.executions, told.coalescing.coalesced, told.coalescing.in_flight) == (1, 49, 0)
        assert [task.calls for task in told.tasks] == [5] * 10


async def test_a_death_is_repeated_once_for_all_equal_calls():
    may_die = anyio.Event()

    async def read(arguments) -> Any:
        if server.opened == 1:
            await may_die.wait()
            server.die()
            await anyio.sleep_forever()
        return text_result("done")

    server = MemoryServer(read=read)
    async with a_hub(server, memory=SHARED) as hub, hub.task() as task, anyio.create_task_group() as tasks:
        callers = [Running(tasks, task.call, "memory", "read") for _ in range(8)]
        await anyio.wait_all_tasks_blocked()
        may_die.set()
        assert {(await caller.wait()).text for caller in callers} == {"done"}
        told = hub.statistics()
        assert (told.calls, told.retries, told.starts, told.deaths) == (8, 1, 2, 1)


async def test_a_kept_answer_is_given_although_there_is_no_place():
    pause = Pausing()
    server = MemoryServer(pause=pause, echo=echo)
    hub = a_hub(server, limits={"concurrency": 1, "queue": 0}, memory=KEPT)
    async with hub, hub.task() as task, hub.task() as other, anyio.create_task_group() as tasks:
        assert (await other.call("memory", "echo", {"text": "kept"})).text == "kept"
        Running(tasks, task.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        assert (await task.call("memory", "echo", {"text": "kept"})).text == "kept"
        with pytest.raises(Overloaded) as refusal:
            await task.call("memory", "echo", {"text": "new"})
        assert (refusal.value.call_id, refusal.value.server, refusal.value.tool) == (f"{task.id}-3", "memory", "echo")
        pause.go.set()
    counted = hub.statistics().cache
    assert (counted.hits, counted.misses, counted.entries) == (1, 3, 2)


async def test_what_is_switched_off_is_refused_although_its_answer_is_kept():
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory=KEPT) as hub, hub.task() as task:
        await task.call("memory", "echo")
        spec = hub.config.servers["memory"]
        rules = spec.tools.model_copy(update={"deny": ["echo"]})
        strict = {"memory": spec.model_copy(update={"tools": rules})}
        async with hub.task(servers=strict) as other:
            with pytest.raises(ToolNotFound):
                await other.call("memory", "echo")


@pytest.mark.parametrize("anyio_backend", [virtual_time()])
async def test_every_caller_is_counted_and_told_of_its_own_end():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause), memory=SHARED) as hub, hub.task("a") as one, hub.task("b") as other:
        async with anyio.create_task_group() as tasks:
            hurried = Running(tasks, lambda: one.call("memory", "pause", timeout=2))
            patient = Running(tasks, other.call, "memory", "pause")
            error = await hurried.wait()
            assert (type(error), error.sent, error.call_id) == (CallTimeout, "maybe", "a-1")
            await anyio.wait_all_tasks_blocked()
            assert pause.inside == 1
            pause.go.set()
            assert (await patient.wait()).text == "done"
        assert (hub.statistics().calls, hub.statistics().errors) == (2, 1)


async def test_the_server_is_told_when_nobody_waits_any_more():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause), memory=SHARED) as hub, hub.task() as task:
        async with anyio.create_task_group() as tasks:
            callers = [Running(tasks, task.call, "memory", "pause") for _ in range(3)]
            await anyio.wait_all_tasks_blocked()
            for caller in callers:
                caller.cancel()
            for caller in callers:
                await caller.wait()
            assert (pause.inside, the_hub_s(hub).in_use, hub.statistics().coalescing.in_flight) == (0, 0, 0)


async def test_closing_a_task_fails_its_own_calls_and_no_other_task_s():
    pause = Pausing()
    server = MemoryServer(pause=pause)
    async with a_hub(server, memory=OWN) as hub, anyio.create_task_group() as tasks:
        closing, staying = await hub.open_task("closing"), await hub.open_task("staying")
        own = Running(tasks, closing.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        foreign = [Running(tasks, staying.call, "memory", "pause") for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        assert server.opened == 1
        await hub.close_task("closing")
        error = await own.wait()
        assert (type(error), error.sent) == (TaskClosed, "maybe")
        await anyio.wait_all_tasks_blocked()
        assert (server.opened, pause.inside) == (2, 1)
        pause.go.set()
        assert {(await caller.wait()).text for caller in foreign} == {"done"}


async def test_a_task_that_is_closed_leaves_the_queue_it_waits_in_and_the_others_go_on():
    pause = Pausing()
    server = MemoryServer(pause=pause, echo=echo)
    hub = a_hub(server, limits={"concurrency": 1}, memory=OWN)
    async with hub, anyio.create_task_group() as tasks:
        busy, closing, staying = [await hub.open_task(name) for name in ("busy", "closing", "staying")]
        Running(tasks, busy.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        own = Running(tasks, closing.call, "memory", "echo")
        await anyio.wait_all_tasks_blocked()
        foreign = Running(tasks, staying.call, "memory", "echo")
        await anyio.wait_all_tasks_blocked()
        await hub.close_task("closing")
        assert type(await own.wait()) is TaskClosed
        await anyio.wait_all_tasks_blocked()
        assert the_hub_s(hub).waiting == 1
        pause.go.set()
        assert not (await foreign.wait()).is_error


async def test_the_end_of_the_hub_ends_every_shared_call():
    pause = Pausing()
    async with anyio.create_task_group() as tasks:
        async with a_hub(MemoryServer(pause=pause), memory=SHARED) as hub:
            agents = [await hub.open_task() for _ in range(3)]
            callers = [Running(tasks, agent.call, "memory", "pause") for agent in agents]
            await anyio.wait_all_tasks_blocked()
        assert [type(await caller.wait()) for caller in callers] == [TaskClosed] * 3
        assert pause.inside == 0


async def test_the_answers_of_a_task_end_with_it():
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory=READS | {"cache": {}}) as hub:
        async with hub.task() as task:
            for _ in range(3):
                await task.call("memory", "echo")
            assert hub.statistics().cache.entries == 1
            assert len(server.live[0].calls) == 1
        assert hub.statistics().cache == CacheStatistics(hits=2, misses=1, evictions=0, entries=0, bytes=0)


async def test_what_a_server_keeps_is_read_again_after_a_call_that_may_have_changed_it():
    text = ["old"]

    async def read(arguments) -> Any:
        return text_result(text[-1])

    async def write(arguments) -> Any:
        text.append("new")
        return text_result("written")

    async with a_hub(MemoryServer(read=read, write=write), memory=READS | {"cache": {}}) as hub, hub.task() as task:
        assert [(await task.call("memory", "read")).text for _ in range(2)] == ["old", "old"]
        await task.call("memory", "write")
        assert (await task.call("memory", "read")).text == "new"
