"""What sandboxes leave behind: orphan processes, of which there should be none, and CPU time that no parent counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from benchmarks.common.measure import tree

_AGENT = "sbx-agent"


@dataclass
class Orphans:
    """Counts orphans. Call `look()` before sandboxes end; at the end it looks for the same processes."""

    seen: set[psutil.Process] = field(default_factory=set)
    count: int = 0
    """Processes that had not ended."""
    unwaited_cpu_s: float = 0.0
    """No process waits for those that end with their pid namespace, so no parent counts their CPU time."""

    def look(self) -> None:
        below = tree(os.getpid())[1:]
        self.seen |= set(below)
        agents = {process.pid for process in below if _is_agent(process)}
        self.unwaited_cpu_s += sum(_cpu_s(process, agents) for process in below)


@contextmanager
def watch_orphans() -> Iterator[Orphans]:
    """Count the processes that are left of those started inside."""
    before = set(tree(os.getpid()))
    left = Orphans()
    yield left
    left.seen |= set(tree(os.getpid()))
    left.count = len(psutil.wait_procs(left.seen - before, timeout=1)[1])


def _is_agent(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == _AGENT)
    except psutil.NoSuchProcess:
        return False


def _cpu_s(process: psutil.Process, agents: set[int]) -> float:
    """Return the CPU time of a child of an agent; the agents themselves are waited for."""
    try:
        if process.ppid() not in agents:
            return 0.0
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
