"""Servers with `spawn: fork` behind a hub: they work as others do, each for its task, and nothing of them is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from killable_hub import another_hub
from real_processes import HubFactory, Process, below, eventually, fixture, noted, pid_of, shim_of, state_of

from testbed import third_party
from toolhub import Hub, HubTask, ServerSpec
from toolhub.config.server import RestartSettings

pytestmark = pytest.mark.anyio

AT_ONCE = RestartSettings(backoff_s=0, max_deaths=1000)


def forking(script: str, *args: str, **fields: Any) -> ServerSpec:
    return fixture(script, *args, spawn="fork", stateful=False, restart=AT_ONCE, **fields)


async def started(hub: Hub, count: int, server: str) -> list[HubTask]:
    """Tasks whose server is up, one started after the other, so that the last ones come from one zygote."""
    tasks = [await hub.open_task(f"t{number}") for number in range(count)]
    for task in tasks:
        assert await task.warm() == {}
        assert state_of(task, server) == "LIVE"
    return tasks


def zygote_of(server_pid: int) -> Process:
    zygote = shim_of(shim_of(server_pid).pid)
    assert b"zygote.py" in Path(f"/proc/{zygote.pid}/cmdline").read_bytes()
    return zygote


@pytest.mark.slow
async def test_a_third_partys_server_is_forked_and_answers(hubs: HubFactory) -> None:
    specs = [
        ServerSpec(name=name, command=str(python), args=["-m", "mcp_server_time"], spawn="fork")
        for name, python in (("two", third_party.mcp2_python()), ("one", third_party.mcp1_python()))
    ]
    with anyio.fail_after(60):
        async with hubs(*specs) as hub:
            for number in range(3):
                async with hub.task(f"t{number}") as task:
                    for name in ("two", "one"):
                        answer = await task.call(name, "get_current_time", {"timezone": "Asia/Tokyo"})
                        assert "+09:00" in answer.text
                    zygotes = {zygote_of(pid_of(task, name)).pid for name in ("two", "one")}
            assert len(zygotes) == 2


async def test_targets_that_start_at_once_share_nothing_and_wait_for_their_zygote_only(hubs: HubFactory) -> None:
    specs = [forking("echo", name="a"), forking("paged", name="b")]
    with anyio.fail_after(30):
        async with hubs(*specs) as hub, anyio.create_task_group() as starting:

            async def one(number: int) -> None:
                task = await hub.open_task(f"t{number}")
                assert await task.warm() == {}

            for number in range(10):
                starting.start_soon(one, number)
        # The hub has ended; `nothing_is_left` looks for what it left behind.


async def test_each_task_has_its_own_variables(hubs: HubFactory) -> None:
    spec = forking("echo", env={"TASK": "${task.id}", "SAME": "for all"})
    with anyio.fail_after(30):
        async with hubs(spec) as hub:
            tasks = await started(hub, 4, "echo")
            pids = [pid_of(task, "echo") for task in tasks]
            # The kernel shows what was executed; the program's own view is what counts.
            told = [(await task.call("echo", "env", {"name": "TASK"})).text for task in tasks]
            assert told == ["t0", "t1", "t2", "t3"]
            assert len({zygote_of(pid).pid for pid in pids[1:]}) == 1


async def test_a_killed_zygote_takes_its_servers_along_and_is_replaced(hubs: HubFactory, tmp_path: Path) -> None:
    pidfile = tmp_path / "pids"
    with anyio.fail_after(30):
        async with hubs(forking("daemonises", env={"PIDFILE": str(pidfile)})) as hub:
            tasks = await started(hub, 3, "daemonises")
            last = tasks[-1]
            zygote = zygote_of(pid_of(last, "daemonises"))
            lost = [*below(zygote.pid), zygote]
            assert len(lost) >= 2 * (1 + 1 + 2) + 1
            zygote.kill()
            await eventually(lambda: not any(each.is_alive for each in lost))
            assert (await last.call("daemonises", "echo", {"text": "again"})).text == "again"
            assert zygote_of(pid_of(last, "daemonises")) != zygote


async def test_a_killed_shim_takes_its_server_along_and_no_other(hubs: HubFactory, tmp_path: Path) -> None:
    pidfile = tmp_path / "pids"
    with anyio.fail_after(30):
        async with hubs(forking("daemonises", env={"PIDFILE": str(pidfile)})) as hub:
            *_, good, bad = await started(hub, 4, "daemonises")
            kept = pid_of(good, "daemonises")
            victims = [Process.of(pid_of(bad, "daemonises")), *noted(pidfile, 8)[-2:]]
            shim_of(victims[0].pid).kill()
            await eventually(lambda: not any(each.is_alive for each in victims))
            assert (await bad.call("daemonises", "echo", {"text": "again"})).text == "again"
            assert pid_of(good, "daemonises") == kept and Process.of(kept).is_alive


async def test_a_killed_server_leaves_nothing_and_is_replaced(hubs: HubFactory, tmp_path: Path) -> None:
    pidfile = tmp_path / "pids"
    with anyio.fail_after(30):
        async with hubs(forking("daemonises", env={"PIDFILE": str(pidfile)})) as hub:
            *_, task = await started(hub, 3, "daemonises")
            victims = [Process.of(pid_of(task, "daemonises")), *noted(pidfile, 6)[-2:]]
            victims[0].kill(signal.SIGKILL)
            await eventually(lambda: not any(each.is_alive for each in victims))
            assert (await task.call("daemonises", "echo", {"text": "again"})).text == "again"


@pytest.mark.parametrize("fork", [False, True], ids=["", "forked"])
async def test_a_killed_hub_leaves_no_zygote_and_nothing_of_its_servers(tmp_path: Path, fork: bool) -> None:
    """Its three servers are one program: the first is the teacher, the others come from its zygote."""
    pidfile = tmp_path / "pids"
    specs = [forking("daemonises", name=f"s{number}", env={"PIDFILE": str(pidfile)}) for number in range(3)]
    async with another_hub(tmp_path / "state", *specs, fork=fork) as hub:
        assert any(b"zygote.py" in Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in hub.all)
        assert {*hub.servers, *noted(pidfile, 6)} <= set(hub.all)
        hub.process.kill()
        await eventually(lambda: not hub.alive, within=20.0)


async def test_a_zygote_that_nobody_needs_ends_and_the_next_start_makes_another(
    hubs: HubFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolhub.spawn.fork.target.IDLE_S", 0.2)
    with anyio.fail_after(30):
        async with hubs(forking("echo")) as hub:
            *_, task = await started(hub, 2, "echo")
            zygote = zygote_of(pid_of(task, "echo"))
            await hub.close_task(task.id)
            await eventually(lambda: not zygote.is_alive)
            async with hub.task() as task:
                assert (await task.call("echo", "echo", {"text": "again"})).text == "again"
                assert zygote_of(pid_of(task, "echo")) != zygote


async def test_a_program_whose_zygote_dies_again_and_again_is_executed(hubs: HubFactory) -> None:
    with anyio.fail_after(30):
        async with hubs(forking("echo", stop_timeout_s=0.1)) as hub:
            for number in range(6):
                async with hub.task(f"t{number}") as task:
                    assert (await task.call("echo", "echo", {"text": "works"})).text == "works"
                    above = shim_of(shim_of(pid_of(task, "echo")).pid)
                    if number and b"zygote.py" in Path(f"/proc/{above.pid}/cmdline").read_bytes():
                        above.kill()
                        await eventually(lambda above=above: not above.is_alive)
            assert b"supervisor.py" in Path(f"/proc/{above.pid}/cmdline").read_bytes()


async def test_a_closed_hub_ends_its_zygotes(hubs: HubFactory) -> None:
    with anyio.fail_after(30):
        async with hubs(forking("echo")) as hub:
            *_, task = await started(hub, 2, "echo")
            zygote = zygote_of(pid_of(task, "echo"))
            await hub.close_task(task.id)
            assert zygote.is_alive  # for the next one
        assert not zygote.is_alive


async def test_a_server_gets_no_descriptor_but_its_stdio(hubs: HubFactory) -> None:
    with anyio.fail_after(30):
        async with hubs(forking("echo")) as hub:
            *_, task = await started(hub, 3, "echo")
            assert sorted(os.listdir(f"/proc/{pid_of(task, 'echo')}/fd")) == ["0", "1", "2"]
