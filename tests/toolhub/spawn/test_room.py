"""Real servers and a budget of processes: idle ones make room, working ones never do, and nobody is left out."""

from __future__ import annotations

import anyio
import pytest
from real_processes import HubFactory, Process, below, eventually, fixture, pid_of

from toolhub.errors import Overloaded

pytestmark = pytest.mark.anyio


def servers_of(hub_pid: int) -> list[Process]:
    """The living processes of the echo server; supervisor and shims are not counted by the budget either."""
    return [process for process in below(hub_pid) if is_echo(process.pid)]


def is_echo(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            return b"echo.py" in cmdline.read()
    except OSError:
        return False


async def test_more_tasks_than_processes_all_get_their_answers(hubs: HubFactory) -> None:
    most = 0
    async with hubs(fixture("echo", stateful=False), processes=2) as hub:

        async def work(number: int) -> None:
            nonlocal most
            async with hub.task(f"t{number}") as task:
                for turn in range(3):
                    assert (await task.call("echo", "echo", {"text": f"{number}/{turn}"})).text == f"{number}/{turn}"
                    most = max(most, len(servers_of(hub.statistics().pid)))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(work, number)
        budget = hub.statistics().budget
        assert budget is not None and budget.processes == 0
        assert most == 2


async def test_a_session_with_a_call_in_it_is_never_ended_for_room(hubs: HubFactory) -> None:
    slow = fixture("echo", stateful=False, start_timeout_s=1)
    async with hubs(slow, processes=1) as hub, hub.task("busy") as busy, hub.task("waiting") as waiting:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                await busy.warm()
                tasks.start_soon(busy.call, "echo", "sleep", {"seconds": 2})
                await eventually(lambda: busy.statistics().in_flight == 1)
                pid = pid_of(busy, "echo")
                with pytest.raises(Overloaded, match="no room to start server 'echo' within 1 s: 1 of 1 processes"):
                    await waiting.call("echo", "echo", {"text": "x"})
                assert pid_of(busy, "echo") == pid
            assert (await waiting.call("echo", "echo", {"text": "x"})).text == "x"
        assert hub.statistics().deaths == 0
