"""How much memory a whole tree of processes takes, and whether this machine has room for more."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from benchmarks.common.measure import TreeSampler, pss_bytes, tree

GIB = 2**30
# A machine that runs out of memory ends processes that have nothing to do with a benchmark.
FLOOR_BYTES = 2 * GIB


class ProcessCounter(TreeSampler):
    """Watches how many processes there are and leaves their memory alone: reading that of 200 takes 100 ms."""

    def sample(self) -> None:
        self.peak_processes = max(self.peak_processes, len(tree(self._pid)))


def tree_pss_bytes(pid: int) -> int:
    """PSS of a process and of everything below it. Takes up to a millisecond for each."""
    return sum(pss_bytes(process.pid) for process in tree(pid))


def room_bytes() -> int:
    """How much may be taken until only `FLOOR_BYTES` are available; negative if it is less already."""
    return int(psutil.virtual_memory().available) - FLOOR_BYTES


def not_forked(state_dir: Path) -> str:
    """Say which servers a hub executed although their config has `spawn: fork`, and why; empty if there is none."""
    try:
        reasons = json.loads((state_dir / "fork_fallbacks.json").read_text())
    except FileNotFoundError:
        return ""
    told = "; ".join(f"{server} ({why})" for server, why in reasons.items())
    return told and f"executed, not forked: {told}"
