"""Real servers and real processes: what the tests of channels, spawning, crashes and foreign servers share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio

from toolhub import Config, Hub, HubTask, ServerSpec
from toolhub.config.models import HubSettings, Limits
from toolhub.spawn.supervisor import descendants, start_time

T = TypeVar("T")

FIXTURES = Path(__file__).parents[1] / "fixtures"
PYTHON = [sys.executable, "-S"]  # without site the fixtures start in some 15 ms


@dataclass(frozen=True)
class Process:
    """One incarnation of a pid: a reused pid is another process, and a zombie is a dead one."""

    pid: int
    started: str | None

    @classmethod
    def of(cls, pid: int) -> Process:
        return cls(pid, start_time(pid))

    @property
    def is_alive(self) -> bool:
        return self.started is not None and start_time(self.pid) == self.started

    @property
    def name(self) -> str:
        """The kernel's name for it; empty after its end."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.kill_if_alive(number), f"{self} has ended"

    def kill_if_alive(self, number: signal.Signals = signal.SIGKILL) -> bool:
        """Return whether it was still there: others may end it, or it may end by itself."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def below(pid: int) -> list[Process]:
    """Every living process below `pid`."""
    return [process for process in map(Process.of, descendants(pid)) if process.is_alive]


def supervisor_of(hub_pid: int) -> Process:
    """The supervisor of the hub that runs in `hub_pid`."""
    return next(process for process in below(hub_pid) if is_supervisor(process.pid))


def shim_of(server_pid: int) -> Process:
    stat = Path(f"/proc/{server_pid}/stat").read_text().rpartition(")")[2].split()
    return Process.of(int(stat[1]))


def is_supervisor(pid: int) -> bool:
    """Whether `pid` runs the supervisor's script: the supervisor itself, or a shim forked from it."""
    return b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def noted(pidfile: Path, count: int) -> list[Process]:
    """The processes whose pids a fixture has written into its PIDFILE, once there are `count` of them."""
    pids = pidfile.read_text().split() if pidfile.exists() else []
    return [Process.of(int(pid)) for pid in pids] if len(pids) >= count else []


async def eventually(predicate: Callable[[], T], *, within: float = 30.0) -> T:
    """Return the first true value of `predicate`: for what happens in other processes, where no event reaches us."""
    deadline = anyio.current_time() + within
    while not (value := predicate()):
        assert anyio.current_time() < deadline, f"did not become true within {within} s"
        await anyio.sleep(0.01)
    return value


def fixture(script: str, *args: str, name: str = "", **fields: Any) -> ServerSpec:
    """The spec of a server from tests/fixtures, named like its script."""
    command, *rest = PYTHON
    path = str(FIXTURES / f"{script}.py")
    return ServerSpec(name=name or script, command=command, args=[*rest, path, *args], **fields)


def config(*specs: ServerSpec, state_dir: Path, **limits: Any) -> Config:
    return Config(
        servers={spec.name: spec for spec in specs},
        hub=HubSettings(state_dir=state_dir),
        limits=Limits(**limits),
    )


class HubFactory:
    """Makes hubs whose journal is in one temporary directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    def __call__(self, *specs: ServerSpec, **limits: int) -> Hub:
        return Hub(config(*specs, state_dir=self.state_dir, **limits))

    @asynccontextmanager
    async def task(self, *specs: ServerSpec, within: float = 20.0, **limits: int) -> AsyncIterator[HubTask]:
        """A task of a hub of its own, all of it bounded by `within` seconds."""
        with anyio.fail_after(within):
            async with self(*specs, **limits) as hub, hub.task("t") as task:
                yield task


def pid_of(task: HubTask, server: str) -> int:
    """The pid of a task's server that is up."""
    (pid,) = (slot.pid for slot in task.statistics().slots if slot.server == server)
    assert pid is not None
    return pid


def state_of(task: HubTask, server: str) -> str:
    (state,) = (slot.state for slot in task.statistics().slots if slot.server == server)
    return state
