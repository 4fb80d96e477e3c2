"""The processes between the hub and its servers: what they cost, and what happens when one is killed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest
from real_processes import (
    PYTHON,
    HubFactory,
    Process,
    below,
    eventually,
    fixture,
    noted,
    pid_of,
    shim_of,
    state_of,
    supervisor_of,
)

from toolhub import SessionLost
from toolhub.config.server import RestartSettings
from toolhub.spawn.exec import Spawner, open_spawner

pytestmark = pytest.mark.anyio

AT_ONCE = RestartSettings(backoff_s=0, max_deaths=1000)


def open_descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def output_of(spawner: Spawner, code: str, env: dict[str, str]) -> str:
    """What a small program prints on stdout."""
    child = await spawner.spawn([*PYTHON, "-c", code], env=env)
    try:
        printed = b""
        while True:
            await anyio.wait_readable(child.stdout)
            chunk = os.read(child.stdout, 65536)
            if not chunk:
                return printed.decode()
            printed += chunk
    finally:
        await child.watch()
        child.close()


async def test_an_environment_of_200_kb_passes() -> None:
    env = {f"V{number}": f"{number:010d}" * 100 for number in range(200)}
    with anyio.fail_after(30):
        async with open_spawner() as spawner:
            code = "import json, os; print(json.dumps(dict(os.environ)))"
            seen = json.loads(await output_of(spawner, code, env))
    seen.pop("LC_CTYPE", None)  # Python itself sets it when there is no locale
    assert seen == env


async def test_arguments_and_variables_are_any_text() -> None:
    with anyio.fail_after(30):
        async with open_spawner() as spawner:
            code = "import os; print(ascii(os.environb[b'GR\\xc3\\x9cSSE']))"
            assert (await output_of(spawner, code, {"GRÜSSE": "✓ \n\udcff"})).strip() == ascii(b"\xe2\x9c\x93 \n\xff")


async def test_30_servers_start_at_once(hubs: HubFactory) -> None:
    specs = [fixture("echo", name=f"s{number}") for number in range(30)]
    async with hubs.task(*specs, within=30) as task:
        assert await task.warm() == {}
        pids = {(await task.call(spec.name, "pid")).text for spec in specs}
        assert len(pids) == 30
        assert len([each for each in below(os.getpid()) if each.pid == supervisor_of(os.getpid()).pid]) == 1


async def test_nothing_accumulates_over_50_servers(hubs: HubFactory) -> None:
    with anyio.fail_after(120):
        async with hubs(fixture("echo")) as hub:

            async def round_trip(name: str) -> None:
                async with hub.task(name) as task:
                    assert (await task.call("echo", "echo", {"text": name})).text == name

            await round_trip("first")
            supervisor = supervisor_of(os.getpid())
            before = open_descriptors(), open_descriptors(supervisor.pid)
            for number in range(50):
                await round_trip(f"t{number}")
            await eventually(lambda: below(supervisor.pid) == [])
            await eventually(lambda: (open_descriptors(), open_descriptors(supervisor.pid)) == before)
            await eventually(lambda: zombies_of(supervisor.pid) == [] and zombies_of(os.getpid()) == [])


def zombies_of(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if is_zombie(child)]


def is_zombie(pid: str) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # reaped since it was listed
        return False


async def test_a_server_gets_no_descriptor_but_its_stdio(hubs: HubFactory) -> None:
    """A copy of another server's pipe would hide that server's end."""
    async with hubs.task(fixture("echo", name="a"), fixture("echo", name="b")) as task:
        for name in ("a", "b"):
            pid = (await task.call(name, "pid")).text
            assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]


async def test_a_killed_shim_takes_its_server_along(hubs: HubFactory, tmp_path: Path) -> None:
    pidfile = tmp_path / "pids"
    spec = fixture("daemonises", env={"PIDFILE": str(pidfile)}, stateful=False, restart=AT_ONCE)
    async with hubs.task(spec, fixture("echo")) as task:
        good = (await task.call("echo", "pid")).text
        await task.call("daemonises", "echo", {"text": ""})
        processes = [Process.of(pid_of(task, "daemonises")), *noted(pidfile, 2)]
        shim_of(processes[0].pid).kill()
        await eventually(lambda: state_of(task, "daemonises") == "BACKOFF")
        await eventually(lambda: not any(each.is_alive for each in processes))
        assert (await task.call("daemonises", "echo", {"text": "again"})).text == "again"
        assert (await task.call("echo", "pid")).text == good


async def test_a_shim_killed_during_a_call_is_a_lost_session(hubs: HubFactory) -> None:
    async with hubs.task(fixture("echo", restart=AT_ONCE)) as task, anyio.create_task_group() as callers:
        await task.call("echo", "pid")

        async def call() -> None:
            with pytest.raises(SessionLost) as caught:
                await task.call("echo", "sleep", {"seconds": 60})
            assert caught.value.sent == "maybe"

        callers.start_soon(call)
        await eventually(lambda: task.counts.in_flight)
        shim_of(pid_of(task, "echo")).kill()


async def test_a_killed_supervisor_is_replaced_and_nobody_is_left_behind(hubs: HubFactory, tmp_path: Path) -> None:
    pidfile = tmp_path / "pids"
    old = fixture("daemonises", env={"PIDFILE": str(pidfile)}, stop_timeout_s=0.3)
    with anyio.fail_after(20):
        async with hubs(old, fixture("echo")) as hub, hub.task("t") as task:
            await task.call("daemonises", "echo", {"text": ""})
            processes = [Process.of(pid_of(task, "daemonises")), *noted(pidfile, 2)]
            first = supervisor_of(os.getpid())
            first.kill()
            await eventually(lambda: not first.is_alive)
            assert (await task.call("echo", "echo", {"text": "started after"})).text == "started after"
            assert supervisor_of(os.getpid()) != first
            assert (await task.call("daemonises", "echo", {"text": "still"})).text == "still"
            processes.append(Process.of(pid_of(task, "echo")))
        await eventually(lambda: not any(each.is_alive for each in processes))


async def test_a_spawner_that_was_never_used_has_no_process() -> None:
    before = below(os.getpid())
    async with open_spawner():
        assert below(os.getpid()) == before


async def test_a_cancelled_spawn_leaves_no_process(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    code = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    with anyio.fail_after(30):
        async with open_spawner() as spawner:
            (await spawner.spawn([*PYTHON, "-c", ""], env={})).close()  # the supervisor is up
            before = open_descriptors()
            for _ in range(10):
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await spawner.spawn([sys.executable, "-c", code], env={})
            assert open_descriptors() == before
            supervisor = supervisor_of(os.getpid())
            await eventually(lambda: below(supervisor.pid) == [])
