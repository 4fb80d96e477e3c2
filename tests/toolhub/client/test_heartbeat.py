"""Tasks live while they are held, and not longer."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from hub_process import HubProcess, echo_server, run_script
from real_processes import eventually

import toolhub
from toolhub.client import RemoteHub
from toolhub.client.lease_renewer import lease_renewer

pytestmark = pytest.mark.anyio


async def statistics_of(hub: RemoteHub, task_id: str) -> dict[str, Any] | None:
    tasks: list[dict[str, Any]] = (await hub.statistics())["tasks"]
    return next((task for task in tasks if task["id"] == task_id), None)


async def test_a_held_task_outlives_its_lease_while_nobody_calls(hub: RemoteHub) -> None:
    async with hub.task("held", lease=0.6) as task:
        age = 0.0
        while age < 2.5:  # the hub closes silent tasks once a second
            async with asyncio.timeout(5):
                await asyncio.sleep(0.1)
                found = await statistics_of(hub, task.id)
            assert found is not None
            age = found["age_seconds"]


async def test_a_blocked_event_loop_does_not_stop_the_heartbeat(hub_process: HubProcess) -> None:
    script = """
import asyncio, sys, time, toolhub

async def main():
    hub = toolhub.connect(sys.argv[1])
    async with hub.task("blocked", lease=0.6) as task:
        time.sleep(2.5)
        print((await hub.statistics())["tasks"][-1]["id"])

asyncio.run(main())
"""
    assert run_script(script, hub_process.url) == "blocked\n"


async def test_a_dropped_task_is_closed_soon(hub: RemoteHub) -> None:
    task: Any = await hub.open_task("dropped", servers={"echo": echo_server()})
    assert await statistics_of(hub, "dropped")
    del task
    gc.collect()
    async with asyncio.timeout(5):
        while await statistics_of(hub, "dropped"):
            await asyncio.sleep(0.02)


async def test_a_task_is_closed_when_its_process_ends(hub: RemoteHub, hub_process: HubProcess) -> None:
    script = """
import asyncio, sys, toolhub
task = asyncio.run(toolhub.connect(sys.argv[1]).open_task("left"))
print(task.id)
"""
    assert run_script(script, hub_process.url) == "left\n"
    assert await statistics_of(hub, "left") is None


async def test_a_closed_task_is_not_renewed(hub: RemoteHub) -> None:
    task = await hub.open_task("closed", lease=0.3)
    await task.aclose()
    await eventually(lambda: not lease_renewer._alive())


async def test_nothing_is_sent_for_a_hub_that_was_never_used() -> None:
    before = repr(lease_renewer)
    toolhub.connect("http://127.0.0.1:1")
    assert repr(lease_renewer) == before
