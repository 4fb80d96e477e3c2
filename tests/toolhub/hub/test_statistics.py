"""Statistics are values: of one moment, frozen, and true."""

from __future__ import annotations

import dataclasses

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, echo
from running import Running

from toolhub import ToolNotFound
from toolhub.channel.memory import MemoryServer

pytestmark = pytest.mark.anyio


async def test_a_snapshot_does_not_change_with_the_hub():
    async with a_hub(MemoryServer(echo=echo)) as hub, hub.task("t1", run="r1") as task:
        before = hub.statistics()
        copy = dataclasses.asdict(before)
        await task.call("memory", "echo")
        assert dataclasses.asdict(before) == copy
        assert hub.statistics() != before


async def test_no_field_of_any_level_can_be_set():
    hub = a_hub(MemoryServer(echo=echo), memory={}, shared={"share": "hub"})
    async with hub, hub.task() as task:
        await task.call("memory", "echo")
        await task.call("shared", "echo")
        told = hub.statistics()
        for value in (told, told.tasks[0], told.tasks[0].slots[0], told.shared[0]):
            for name in (field.name for field in dataclasses.fields(value)):
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(value, name, 1)
            hash(value)


async def test_a_slot_tells_its_process_and_what_runs_in_it():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause)) as hub, hub.task("t1", run="r1") as task:
        async with anyio.create_task_group() as group:
            Running(group, task.call, "memory", "pause")
            await anyio.wait_all_tasks_blocked()
            (told,) = hub.statistics().tasks
            assert (told.id, told.run, told.calls, told.in_flight, told.errors) == ("t1", "r1", 1, 1, 0)
            (slot,) = told.slots
            assert (slot.server, slot.owner, slot.state, slot.pid) == ("memory", "t1", "LIVE", 1001)
            assert (slot.in_flight, slot.starts, slot.deaths, slot.idle_seconds) == (1, 1, 0, 0)
            pause.go.set()


async def test_the_counts_of_ended_tasks_are_kept():
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub:
        for _ in range(3):
            async with hub.task() as task:
                await task.call("memory", "echo")
                with pytest.raises(ToolNotFound):
                    await task.call("nowhere", "echo")
                server.die()
                await anyio.wait_all_tasks_blocked()
        told = hub.statistics()
        assert (told.tasks, told.calls, told.errors, told.starts, told.deaths) == ((), 6, 3, 3, 3)


async def test_only_a_task_with_a_lease_tells_how_much_is_left():
    async with a_hub(MemoryServer()) as hub, hub.task("endless"):
        await hub.open_task("leased", lease=60)
        left = {task.id: task.lease_seconds for task in hub.statistics().tasks}
        assert left["endless"] is None
        assert 55 < left["leased"] <= 60
