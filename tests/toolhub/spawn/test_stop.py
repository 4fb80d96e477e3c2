"""Ending a server ends all of it: however it resists, whatever it has left behind, whoever ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from real_processes import (
    FIXTURES,
    PYTHON,
    HubFactory,
    Process,
    eventually,
    fixture,
    noted,
    pid_of,
    state_of,
)

from toolhub import SessionLost
from toolhub.spawn.child import GONE_S, stop
from toolhub.spawn.exec import Child, child_environment, open_spawner

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(script: str, **env: str) -> AsyncIterator[tuple[Child, Process]]:
    """A fixture server as a bare child that somebody watches."""
    argv = [*PYTHON, str(FIXTURES / f"{script}.py")]
    with anyio.fail_after(30):
        async with open_spawner() as spawner, anyio.create_task_group() as tasks:
            child = await spawner.spawn(argv, env=child_environment(env))
            tasks.start_soon(child.watch)
            await anyio.wait_writable(child.stdin)
            os.write(child.stdin, b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n')
            await anyio.wait_readable(child.stdout)  # it is up, and so is everything it starts
            yield child, Process.of(child.pid)
            child.close()
            tasks.cancel_scope.cancel()


async def test_a_polite_server_ends_with_its_stdin(tmp_path: Path) -> None:
    async with running("echo") as (child, process):
        await stop(child, grace=5)
        assert child.exit_code == 0 and not process.is_alive


async def test_sigterm_reaches_the_server() -> None:
    async with running("echo") as (child, _):
        child.terminate()
        await child.gone.wait()
        assert child.exit_code == -signal.SIGTERM


async def test_a_stubborn_server_is_killed_in_bounded_time() -> None:
    grace = 0.3
    async with running("ignores_eof_and_term") as (child, process):
        with anyio.fail_after(2 * grace + GONE_S):
            await stop(child, grace=grace)
        assert child.gone.is_set() and not process.is_alive


async def test_a_cancelled_stop_still_stops() -> None:
    async with running("ignores_eof_and_term") as (child, process):
        with anyio.move_on_after(0.01):
            await stop(child, grace=0.2)
        assert child.gone.is_set() and not process.is_alive


async def test_closing_the_control_socket_is_enough() -> None:
    """What the hub does when it has no time left, and what the kernel does for a hub that was killed."""
    async with running("ignores_eof_and_term") as (child, process):
        child._control.close()
        await eventually(lambda: not process.is_alive)


@pytest.mark.parametrize("ending", ["stop", "exit", "kill"])
async def test_daemons_and_children_end_with_their_server(tmp_path: Path, ending: str) -> None:
    pidfile = tmp_path / "pids"
    async with running("daemonises", PIDFILE=str(pidfile)) as (child, process):
        daemon, plain = noted(pidfile, 2)
        assert daemon.is_alive and plain.is_alive
        if ending == "stop":
            await stop(child, grace=1)
        elif ending == "exit":
            child.close_stdin()  # it leaves by itself, and leaves the two behind
        else:
            process.kill()
        await child.gone.wait()
        assert not any(each.is_alive for each in (daemon, plain, process))


async def test_a_server_that_stays_when_its_stdin_ends_is_not_disturbed_by_its_orphans_exit(tmp_path: Path) -> None:
    """A shim collects every orphan of its server; only the server's own exit counts."""
    pidfile = tmp_path / "pids"
    async with running("daemonises", PIDFILE=str(pidfile)) as (child, process):
        daemon, plain = noted(pidfile, 2)
        daemon.kill()
        plain.kill()
        await eventually(lambda: not daemon.is_alive and not plain.is_alive)
        assert process.is_alive and not child.exited.is_set()


async def test_a_closed_task_leaves_nothing_of_its_servers(hubs: HubFactory, tmp_path: Path) -> None:
    pidfile = tmp_path / "pids"
    env = {"PIDFILE": str(pidfile)}
    with anyio.fail_after(30):
        async with hubs(fixture("daemonises", env=env), fixture("holds_stdout", env=env)) as hub:
            async with hub.task("t") as task:
                assert await task.warm() == {}
                processes = [*noted(pidfile, 3), *(Process.of(slot.pid or 0) for slot in task.statistics().slots)]
                assert all(each.is_alive for each in processes) and len(processes) == 5
            assert not any(each.is_alive for each in processes)


async def test_daemons_of_a_server_that_died_are_gone_before_the_next_one_starts(
    hubs: HubFactory, tmp_path: Path
) -> None:
    pidfile = tmp_path / "pids"
    async with hubs.task(fixture("daemonises", env={"PIDFILE": str(pidfile)}, stateful=False)) as task:
        with pytest.raises(SessionLost):
            await task.call("daemonises", "die")
        left = noted(pidfile, 2)
        await eventually(lambda: not any(each.is_alive for each in left))
        assert (await task.call("daemonises", "echo", {"text": "again"})).text == "again"
        assert state_of(task, "daemonises") == "LIVE" and Process.of(pid_of(task, "daemonises")).is_alive
