"""Who shares a session with whom: per task, per hub, per call, and several instances behind one name."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, a_spec, echo
from running import Running

from toolhub import SessionLost, StartError
from toolhub.channel.memory import MemoryServer

pytestmark = pytest.mark.anyio


async def test_every_task_has_a_session_of_its_own():
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub, hub.task() as one, hub.task() as other:
        for task in (one, other, one, other):
            await task.call("memory", "echo")
        assert server.opened == 2
        assert [len(channel.calls) for channel in server.live] == [2, 2]


async def test_a_death_in_one_task_is_no_other_task_s_business():
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub, hub.task() as one, hub.task() as other:
        await one.call("memory", "echo")
        await other.call("memory", "echo")
        server.live[0].end(-9)
        await anyio.wait_all_tasks_blocked()
        assert not (await other.call("memory", "echo")).is_error
        with pytest.raises(SessionLost):
            await one.call("memory", "echo")


async def test_a_hub_wide_server_is_started_once_and_survives_its_tasks():
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"share": "hub"}) as hub:
        for _ in range(3):
            async with hub.task() as task:
                await task.call("memory", "echo")
                assert task.own_slots() == []
        assert (server.opened, len(server.live)) == (1, 1)
        (shared,) = hub.statistics().shared
        assert (shared.owner, shared.calls, shared.starts) == ("hub", 3, 1)
    assert server.live == []


async def test_tasks_that_come_while_a_hub_wide_server_starts_share_that_start():
    server = MemoryServer(echo=echo)
    server.may_open = anyio.Event()
    async with a_hub(server, memory={"share": "hub"}) as hub, anyio.create_task_group() as group:
        tasks = [await hub.open_task() for _ in range(16)]
        calls = [Running(group, task.call, "memory", "echo") for task in tasks]
        await anyio.wait_all_tasks_blocked()
        server.may_open.set()
        for call in calls:
            assert not (await call.wait()).is_error
        assert server.opened == 1


async def test_a_different_environment_is_never_shared():
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"share": "hub", "env": {"KEY": "ours"}}) as hub:
        theirs = {"memory": a_spec(share="hub", env={"KEY": "theirs"})}
        async with hub.task() as one, hub.task() as same, hub.task(servers=theirs) as other:
            for task in (one, same, other):
                await task.call("memory", "echo")
        assert [len(channel.calls) for channel in server.live] == [2, 1]


async def test_a_server_per_call_lives_no_longer_than_the_call():
    server, pause = MemoryServer(), Pausing()
    server.tools = {"pause": pause, "echo": echo}
    async with a_hub(server, memory={"share": "call"}) as hub, hub.task() as task:
        async with anyio.create_task_group() as group:
            calls = [Running(group, task.call, "memory", "pause") for _ in range(3)]
            await anyio.wait_all_tasks_blocked()
            assert (server.opened, len(server.live)) == (3, 3)
            calls[0].cancel()
            await calls[0].wait()
            assert len(server.live) == 2
            pause.go.set()
            for call in calls[1:]:
                assert (await call.wait()).text == "done"
        assert (server.live, task.own_slots()) == ([], [])
        await task.call("memory", "echo")
        assert server.opened == 4


async def test_a_server_per_call_whose_caller_left_while_it_started_does_not_stay():
    server = MemoryServer(echo=echo)
    server.may_open = anyio.Event()
    async with a_hub(server, memory={"share": "call"}) as hub, hub.task() as task:
        async with anyio.create_task_group() as group:
            call = Running(group, task.call, "memory", "echo")
            await anyio.wait_all_tasks_blocked()
            call.cancel()
            await call.wait()
        server.may_open.set()
        await anyio.wait_all_tasks_blocked()
        assert (server.live, task.own_slots()) == ([], [])


async def test_a_server_per_call_that_does_not_start_leaves_no_slot():
    server = MemoryServer(echo=echo)
    server.fail_next = ["broken"]
    async with a_hub(server, memory={"share": "call"}) as hub, hub.task() as task:
        with pytest.raises(StartError):
            await task.call("memory", "echo")
        assert task.own_slots() == []
        assert not (await task.call("memory", "echo")).is_error


@pytest.mark.parametrize("share", ["task", "hub", "call"])
async def test_every_start_is_counted_whoever_shares_it(share):
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"share": share}) as hub:
        for _ in range(2):
            async with hub.task() as task:
                await task.call("memory", "echo")
        assert hub.statistics().starts == server.opened
        assert hub.statistics().calls == 2


async def run_at_once(task: Any, count: int, pause: Pausing) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            Running(group, task.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        pause.go.set()


async def test_another_instance_is_started_only_while_all_others_work():
    server, pause = MemoryServer(), Pausing()
    server.tools = {"pause": pause, "echo": echo}
    keys = {"instances": 3, "concurrency": 1, "stateful": False}
    async with a_hub(server, memory=keys) as hub, hub.task() as task:
        for _ in range(4):
            await task.call("memory", "echo")
        assert server.opened == 1
        await run_at_once(task, 2, pause)
        assert server.opened == 2


async def test_there_are_never_more_instances_than_configured_and_each_gets_its_share():
    server, pause = MemoryServer(), Pausing()
    server.tools = {"pause": pause}
    async with a_hub(server, memory={"instances": 3, "share": "hub"}) as hub, hub.task() as task:
        await run_at_once(task, 9, pause)
        assert [len(channel.calls) for channel in server.live] == [3, 3, 3]
        assert [slot.owner for slot in hub.statistics().shared] == ["hub"] * 3


async def test_a_call_goes_to_the_least_busy_instance():
    server, pause = MemoryServer(), Pausing()
    server.tools = {"pause": pause, "echo": echo}
    async with a_hub(server, memory={"instances": 2}) as hub, hub.task() as task:
        async with anyio.create_task_group() as group:
            Running(group, task.call, "memory", "pause")
            await anyio.wait_all_tasks_blocked()
            for _ in range(3):
                await task.call("memory", "echo")
            assert [channel.calls for channel in server.live] == [["pause"], ["echo"] * 3]
            pause.go.set()
