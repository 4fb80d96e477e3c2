"""What the hub does, in virtual time, to idle sessions and to tasks whose lease runs out."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from in_memory_hub import Pausing, a_hub, echo, virtual_time
from running import Running

from toolhub import TaskClosed
from toolhub.channel.memory import MemoryServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


async def test_an_idle_session_is_stopped_within_a_twentieth_and_a_check_of_its_limit():
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"stateful": False, "idle_s": 100}) as hub, hub.task() as task:
        await task.call("memory", "echo")
        await anyio.sleep(99)
        assert len(server.live) == 1
        await anyio.sleep(99 * 0.05 + 3)
        assert server.live == []
        assert not (await task.call("memory", "echo")).is_error
        assert hub.statistics().deaths == 0


async def test_a_call_longer_than_the_idle_limit_is_not_cut_off():
    pause = Pausing()
    server = MemoryServer(pause=pause)
    hub = a_hub(server, memory={"stateful": False, "idle_s": 10, "call_timeout_s": 10_000})
    async with hub, hub.task() as task, anyio.create_task_group() as group:
        call = Running(group, task.call, "memory", "pause")
        await anyio.sleep(1000)
        assert (len(server.live), call.is_done) == (1, False)
        pause.go.set()
        assert (await call.wait()).text == "done"
        await anyio.sleep(9)
        assert len(server.live) == 1  # idle since the call's end, not since its start


async def test_a_shared_session_is_stopped_for_idleness_too():
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"share": "hub"}) as hub, hub.task() as task:
        await task.call("memory", "echo")
        await anyio.sleep(700)
        assert server.live == []


@pytest.mark.parametrize("keys", [{}, {"stateful": False, "keep_warm": True}, {"stateful": False, "idle_s": None}])
async def test_what_a_session_remembers_or_was_kept_warm_for_is_not_thrown_away(keys):
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory=keys) as hub, hub.task() as task:
        await task.call("memory", "echo")
        await anyio.sleep(2000)
        assert (len(server.live), server.opened) == (1, 1)


async def test_even_a_session_that_remembers_is_stopped_if_that_was_asked_for():
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"idle_s": 10}) as hub, hub.task() as task:
        await task.call("memory", "echo")
        await anyio.sleep(20)
        assert server.live == []
        assert not (await task.call("memory", "echo")).is_error


@pytest.mark.parametrize("share", ["task", "hub"])
async def test_a_server_kept_warm_is_up_before_the_first_call(share):
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"keep_warm": True, "share": share}) as hub, hub.task():
        await anyio.wait_all_tasks_blocked()
        assert len(server.live) == 1


async def test_a_server_kept_warm_that_does_not_start_costs_nobody_anything():
    server = MemoryServer(echo=echo)
    server.fail_next = ["broken"] * 2
    keys = {"keep_warm": True}
    async with a_hub(server, one=keys, two=keys | {"share": "hub"}) as hub, hub.task() as task:
        await anyio.wait_all_tasks_blocked()
        assert (server.fail_next, server.live) == ([], [])
        assert not (await task.call("one", "echo")).is_error


async def test_a_silent_task_is_closed_when_its_lease_has_run_out():
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub:
        task = await hub.open_task("t1", lease=60)
        await task.call("memory", "echo")
        await anyio.sleep(59)
        assert hub.get_task("t1") is task
        await anyio.sleep(3)
        assert (server.live, hub.tasks) == ([], [])
        with pytest.raises(TaskClosed):
            await task.call("memory", "echo")


async def test_the_expiry_of_one_lease_closes_no_other_task():
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub, hub.task("patient") as patient:
        await hub.open_task("short", lease=5)
        await patient.call("memory", "echo")
        await anyio.sleep(1000)
        assert [task.id for task in hub.tasks] == ["patient"]
        assert len(server.live) == 1


async def test_every_sign_of_life_renews_the_lease():
    async with a_hub(MemoryServer(echo=echo)) as hub:
        task = await hub.open_task("t1", lease=60)
        for sign in (task.renew, None, task.renew):
            await anyio.sleep(50)
            if sign is None:
                await task.call("memory", "echo")
            else:
                await sign()
            assert task.lease_left == 60
        await anyio.sleep(50)
        assert hub.get_task("t1").lease_left == 10


async def test_a_call_in_flight_is_a_sign_of_life_until_it_ends():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause)) as hub, anyio.create_task_group() as group:
        task = await hub.open_task("t1", lease=10)
        call = Running(group, task.call, "memory", "pause")
        await anyio.sleep(200)
        pause.go.set()
        assert (await call.wait()).text == "done"
        await anyio.sleep(9)
        assert hub.tasks == [task]
        await anyio.sleep(3)
        assert hub.tasks == []


async def slow_request(method: str, params: Any = None, **listeners: Any) -> dict[str, Any]:
    await anyio.sleep(100)
    return {"asked": method}


async def test_a_request_in_flight_holds_the_lease_as_a_call_does() -> None:
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub, anyio.create_task_group() as group:
        task = await hub.open_task("t1", lease=10)
        await task.call("memory", "echo")
        server.live[0].request = slow_request
        request = Running(group, task.request, "memory", "resources/list")
        await anyio.sleep(50)
        assert hub.tasks == [task] and task.lease_left == 10
        await anyio.sleep(51)
        assert await request.wait() == {"asked": "resources/list"}
        await anyio.sleep(8)
        assert hub.tasks == [task]  # the lease runs from the answer, not from the question
        await anyio.sleep(4)
        assert hub.tasks == []


async def test_a_listing_of_tools_in_flight_holds_the_lease() -> None:
    server = MemoryServer(echo=echo)
    server.may_open = anyio.Event()
    hub = a_hub(server, memory={"start_timeout_s": 1000})
    async with hub, anyio.create_task_group() as group:
        task = await hub.open_task("t1", lease=10)
        listing = [Running(group, task.tools), Running(group, task.tools_by_server), Running(group, task.warm)]
        await anyio.sleep(100)
        assert hub.tasks == [task]
        server.may_open.set()
        for each in listing:
            assert not isinstance(await each.wait(), Exception)
        await anyio.sleep(12)
        assert hub.tasks == []
