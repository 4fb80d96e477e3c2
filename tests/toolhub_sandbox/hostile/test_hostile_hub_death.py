"""When the hub, a zygote or a launcher is killed: nothing is left, and whoever waits is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest
from real_processes import Process, below, eventually
from toolhub_sandbox import Sandbox, Sandboxes, SandboxLost, SandboxUnavailable
from toolhub_sandbox.local.cgroups import PREFIX

from tests.toolhub_sandbox.hostile.hostile_hub import LINGERING, HostileHub, hub_process
from tests.toolhub_sandbox.hostile.hostile_stage import assert_well, patience, processes, settings, value

pytestmark = pytest.mark.anyio

SYSTEM_PYTHON = "/usr/bin/python3"
# Where the hub is root its sandboxes are somebody who may be unable to reach the project's interpreter.
OTHER_PYTHON = {"python": SYSTEM_PYTHON} if os.geteuid() == 0 and Path(SYSTEM_PYTHON).exists() else {}


def cgroups_of(hub_pid: int) -> list[Path]:
    mine = f"{PREFIX}{hub_pid}-"
    walk = os.walk("/sys/fs/cgroup")  # passes over what disappears meanwhile
    return [Path(parent, name) for parent, folders, _ in walk for name in folders if name.startswith(mine)]


def temporary_folders() -> set[Path]:
    return set(Path("/tmp").glob("toolhub-sandbox-*"))


async def assert_nothing_left(hub: HostileHub) -> None:
    await eventually(lambda: not hub.alive)
    await eventually(lambda: not cgroups_of(hub.process.pid))


async def assert_next_hub_sweeps(hub: HostileHub) -> None:
    """Where no launcher outlives the hub, its empty groups stay until the next one begins."""
    async with Sandboxes(settings()) as sandboxes:
        with patience():
            await sandboxes.isolation()
    assert not cgroups_of(hub.process.pid)


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "with a fork that holds its descriptors"])
@pytest.mark.parametrize("backend", ["local", "subprocess"])
async def test_nothing_is_left_of_a_killed_hub(backend: str, fork: bool, neighbour: Sandbox) -> None:
    folders = temporary_folders()
    count = 10
    keys = OTHER_PYTHON if backend == "subprocess" else {}
    async with hub_process(sandboxes=count, busy=LINGERING, fork=fork, backend=backend, **keys) as hub:
        assert len(hub.all) >= 3 * count
        if hub.told["limits"].startswith("cgroup"):
            assert cgroups_of(hub.process.pid)
        hub.process.kill()
        await eventually(lambda: not hub.alive)
        if backend == "local":
            await assert_nothing_left(hub)
        await eventually(lambda: temporary_folders() <= folders)
        if fork:
            assert hub.fork.is_alive
    await assert_next_hub_sweeps(hub)
    await assert_well(neighbour)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT])
async def test_nothing_is_left_of_a_hub_that_a_signal_ends(number: signal.Signals) -> None:
    async with hub_process(sandboxes=2, busy=LINGERING) as hub:
        hub.process.kill(number)
        await assert_nothing_left(hub)


async def test_nothing_is_left_of_a_hub_that_is_killed_while_sandboxes_are_made() -> None:
    busy = "__import__('time').sleep(1000)"
    async with hub_process(sandboxes=4, busy=busy, bare={"pool": 16}) as hub:
        await eventually(lambda: len(below(hub.process.pid)) > len(hub.all))
        hub.all = below(hub.process.pid)
        hub.process.kill()
        await assert_nothing_left(hub)


def launcher_and_zygote(before: set[Process]) -> tuple[Process, Process]:
    """The hub's child, and its only child."""
    (launcher,) = (each for each in processes() - before if parent_of(each) == os.getpid())
    (zygote,) = (each for each in processes() - before if parent_of(each) == launcher.pid)
    return launcher, zygote


async def agent_below(zygote: Process) -> Process:
    """The agent of the zygote's only sandbox, once what forked it has ended."""

    def agents() -> list[Process]:
        return [each for each in below(zygote.pid) if each.name == "sbx-agent"]

    await eventually(lambda: len(agents()) == 1)
    return agents()[0]


def parent_of(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


async def create_again(sandboxes: Sandboxes) -> Sandbox:
    """Make another; the first try may meet what is just ending."""
    while True:
        try:
            box = await sandboxes.for_owner("again").create()
            assert await value(box, "1 + 1") == 2
            return box
        except (SandboxUnavailable, SandboxLost):
            await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("victim", "number"),
    [("launcher", signal.SIGKILL), ("launcher", signal.SIGTERM), ("zygote", signal.SIGKILL)],
)
async def test_a_killed_zygote_takes_its_sandboxes_and_the_next_one_has_another(
    victim: str, number: signal.Signals, neighbour: Sandbox
) -> None:
    before = processes()
    with patience():
        async with Sandboxes(settings()) as sandboxes:
            boxes = [await sandboxes.for_owner("t").create() for _ in range(3)]
            launcher, zygote = launcher_and_zygote(before)
            old = processes() - before

            async def ends_lost(box: Sandbox) -> None:
                with pytest.raises(SandboxLost, match="is gone with all that it kept"):
                    await box.exec_code(LINGERING)

            async with anyio.create_task_group() as tasks:
                for box in boxes:
                    tasks.start_soon(ends_lost, box)
                await eventually(lambda: len(processes() - before) >= 2 + 3 * 3)
                old |= processes() - before
                (launcher if victim == "launcher" else zygote).kill(number)
            for box in boxes:
                await box.wait_closed()
                assert not box.is_alive
                with pytest.raises(SandboxLost):
                    await box.run_command("true")
            await eventually(lambda: not [each for each in old if each.is_alive])
            again = await create_again(sandboxes)
            assert launcher_and_zygote(before)[1] != zygote
            await again.kill()
        assert processes() <= before
    await assert_well(neighbour)


async def test_a_killed_agent_ends_only_its_own_sandbox(neighbour: Sandbox) -> None:
    before = processes()
    with patience():
        async with Sandboxes(settings()) as sandboxes:
            first = await sandboxes.for_owner("t").create()
            _, zygote = launcher_and_zygote(before)
            agent = await agent_below(zygote)
            second = await sandboxes.for_owner("t").create()
            agent.kill()
            await first.wait_closed()
            with pytest.raises(SandboxLost):
                await first.exec_code("1")
            assert await value(second, "1 + 1") == 2
            assert zygote.is_alive
    await assert_well(neighbour)


async def test_one_sandbox_with_files_in_flight_does_not_keep_others_from_being_made(neighbour: Sandbox) -> None:
    """The kernel counts them for all processes of one uid together."""
    code = """
import socket
kept, sent = [], 0
file = open("/dev/null")
try:
    while True:
        left, right = socket.socketpair()
        kept += [left, right]
        for _ in range(4):
            socket.send_fds(left, [b"x"], [file.fileno()] * 250)
            sent += 250
except OSError as exc:
    told = exc.errno
sent >= 250 and told
"""
    import errno

    with patience():
        async with Sandboxes(settings()) as sandboxes:
            villain = await sandboxes.for_owner("t").create()
            assert await value(villain, code) in (errno.ETOOMANYREFS, errno.EMFILE)
            other = await sandboxes.for_owner("t").create()
            assert await value(other, "1 + 1") == 2
    await assert_well(neighbour)


async def test_pipes_of_one_sandbox_do_not_keep_others_from_working(neighbour: Sandbox) -> None:
    code = """
import fcntl, os
pipes = []
try:
    while len(pipes) < 1000:
        pipes.append(os.pipe())
        fcntl.fcntl(pipes[-1][0], 1031, 1 << 20)
except OSError:
    pass
len(pipes) > 1
"""
    with patience():
        async with Sandboxes(settings()) as sandboxes:
            villain = await sandboxes.for_owner("t").create()
            assert await value(villain, code) is True
            other = await sandboxes.for_owner("t").create()
            assert (await other.run_command("echo there | cat | cat")).stdout == "there\n"
    await assert_well(neighbour)
