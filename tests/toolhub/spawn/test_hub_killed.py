"""SIGKILL of the hub: a second later nothing that it started is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from killable_hub import another_hub
from real_processes import Process, eventually, fixture, is_supervisor, noted

from testbed import third_party
from toolhub import ServerSpec
from toolhub.spawn.cgroup import own_directory

pytestmark = pytest.mark.anyio

# Killing takes 50 ms; the rest is for a machine that is busy.
GONE_WITHIN_S = 20.0


@pytest.mark.parametrize("fork", [False, True], ids=["", "forked"])
@pytest.mark.parametrize("script", ["echo", "daemonises", "ignores_eof_and_term", "holds_stdout"])
async def test_a_killed_hub_leaves_nothing(script: str, fork: bool, tmp_path: Path) -> None:
    """Even if a fork of the hub keeps its sockets open, so that nobody reads an end of file."""
    pidfile = tmp_path / "pids"
    spec = fixture(script, env={"PIDFILE": str(pidfile)})
    async with another_hub(tmp_path / "state", spec, fork=fork) as hub:
        (server,) = hub.servers
        left = noted(pidfile, {"daemonises": 2, "holds_stdout": 1}.get(script, 0))
        assert set(hub.all) >= {server, *left} and len(hub.alive) == len(hub.all) == 3 + len(left)
        hub.process.kill()
        await eventually(lambda: not hub.alive, within=GONE_WITHIN_S)
        if hub.fork is not None:
            assert hub.fork.is_alive  # not a server's process: nobody's to kill


async def test_a_killed_hub_leaves_nothing_of_a_tree_of_npx(tmp_path: Path) -> None:
    command, *args = third_party.npx_command("mcp-server-everything")
    async with another_hub(tmp_path / "state", ServerSpec(name="npx", command=command, args=args)) as hub:
        (npm,) = hub.servers
        assert len(hub.all) >= 4  # supervisor, shim, npm, node, and a shell where npm has one
        hub.process.kill()
        await eventually(lambda: not hub.alive, within=GONE_WITHIN_S)


async def test_a_killed_hub_leaves_nothing_of_many_servers(tmp_path: Path) -> None:
    specs = [fixture("ignores_eof_and_term", name=f"s{number}") for number in range(20)]
    async with another_hub(tmp_path / "state", *specs) as hub:
        assert len(hub.all) == 1 + 2 * len(specs)
        hub.process.kill()
        await eventually(lambda: not hub.alive, within=2 * GONE_WITHIN_S)


def cgroups_of(hub_pid: int) -> list[Path]:
    """The cgroups made for a hub: none where this machine has no cgroup v2 to make them in."""
    parent = own_directory()
    return list(parent.glob(f"toolhub-{hub_pid}-*")) if parent is not None else []


async def test_a_hub_killed_together_with_its_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """The shims are on their own, and enough."""
    pidfile = tmp_path / "pids"
    spec = fixture("daemonises", env={"PIDFILE": str(pidfile)})
    async with another_hub(tmp_path / "state", spec, fork=True) as hub:
        supervisor = hub.all[0]
        assert is_supervisor(supervisor.pid)
        supervisor.kill()
        hub.process.kill()
        await eventually(lambda: not hub.alive, within=GONE_WITHIN_S)
    await eventually(lambda: not cgroups_of(hub.process.pid), within=GONE_WITHIN_S)


async def test_a_hub_killed_while_it_starts_servers_leaves_nothing(tmp_path: Path) -> None:
    """None of them has answered its handshake yet."""
    specs = [fixture("never_answers", name=f"s{number}", start_timeout_s=60) for number in range(2)]
    async with another_hub(tmp_path / "state", *specs, early=True) as hub:

        def all_are_starting() -> bool:
            hub.look()
            return sum(b"never_answers" in command_of(process) for process in hub.all) == len(specs)

        await eventually(all_are_starting)
        hub.process.kill()
        await eventually(lambda: not hub.alive, within=GONE_WITHIN_S)


def command_of(process: Process) -> bytes:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes()
