"""Percentiles, CPU and memory of a process tree, and the order in which variants take turns."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

import psutil

T = TypeVar("T")

# A sample may cost this share of one core; with 200 processes a sample takes some 100 ms.
_SAMPLING_SHARE = 0.1
_SHORTEST_PAUSE_S = 0.1


def percentile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile (0..1), interpolated between neighbours; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, min, p50, p99 and max, for the raw part of a result."""
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "min": min(values),
        "p50": median(values),
        "p99": percentile(values, 0.99),
        "max": max(values),
    }


def interleaved(variants: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield A B C, A B C, ..., so that a disturbance of the machine hits all alike. Discard round 0, the warm-up."""
    for number in range(rounds + 1):
        for variant in variants:
            yield number, variant


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and everything below it that is alive."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def pss_bytes(pid: int) -> int:
    """Proportional set size: shared pages are split among their users, so a sum over processes is meaningful."""
    return _rollup_bytes(pid, "Pss:")


def rss_bytes(pid: int) -> int:
    return _rollup_bytes(pid, "Rss:")


def _rollup_bytes(pid: int, label: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(label)), 0)


def cpu_seconds(pid: int) -> float:
    """CPU time of one process, without its children; resolution 10 ms."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a tree so far, children included that have ended and were waited for."""
    total = 0.0
    for process in tree(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class TreeSampler:
    """Watches a process tree from a thread, and keeps its largest size: `with TreeSampler(pid) as sampler`."""

    def __init__(self, pid: int) -> None:
        self.peak_processes = 0
        self.peak_pss_bytes = 0
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def sample(self) -> None:
        processes = tree(self._pid)
        self.peak_processes = max(self.peak_processes, len(processes))
        self.peak_pss_bytes = max(self.peak_pss_bytes, sum(pss_bytes(process.pid) for process in processes))

    def _watch(self) -> None:
        pause = _SHORTEST_PAUSE_S
        while not self._stopped.wait(pause):
            began = time.thread_time()
            self.sample()
            pause = max(_SHORTEST_PAUSE_S, (time.thread_time() - began) / _SAMPLING_SHARE)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


GIB = 2**30
# A machine that runs out of memory ends processes that have nothing to do with a benchmark.
FLOOR_BYTES = 2 * GIB


class ProcessCounter(TreeSampler):
    """Watches how many processes there are. It does not read their memory: for 200 that takes 100 ms."""

    def sample(self) -> None:
        self.peak_processes = max(self.peak_processes, len(tree(self._pid)))


def tree_pss_bytes(pid: int) -> int:
    """PSS of a process and of everything below it. Takes up to a millisecond for each."""
    return sum(pss_bytes(process.pid) for process in tree(pid))


def room_bytes() -> int:
    """How many bytes may be used until only `FLOOR_BYTES` are left; negative if there are fewer already."""
    return int(psutil.virtual_memory().available) - FLOOR_BYTES


def not_forked(state_dir: Path) -> str:
    """Say which servers a hub executed although their config has `spawn: fork`, and why; empty if there is none."""
    try:
        reasons = json.loads((state_dir / "fork_fallbacks.json").read_text())
    except FileNotFoundError:
        return ""
    told = "; ".join(f"{server} ({why})" for server, why in reasons.items())
    return told and f"executed, not forked: {told}"
