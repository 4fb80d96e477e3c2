"""Measures the memory of a hub that gets more and more idle tasks, until a budget is used up."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from benchmarks.common.callers import check
from benchmarks.common.measure import GIB, not_forked, room_bytes, tree, tree_pss_bytes
from benchmarks.common.result import Json, hub_config
from benchmarks.common.subprocess_worker import Worker, WorkerFailed
from benchmarks.common.worker_main import Act
from toolhub import Hub

# More than any benchmark here needs: this limit is not what is measured.
_MANY = 100_000
# Ending the servers of a task that is not ready when time is up.
_CLOSE_S = 10.0


@dataclass(frozen=True)
class DensityCase:
    """One hub with the servers `entries`, looked at when it has each of `counts` tasks.

    budget_s: for opening them all. budget_bytes: PSS of the whole tree; a case that takes more is stopped.
    task_bytes: the most that one task can take. `step` tasks are opened at a time, and none if they might not fit.
    """

    label: str
    entries: dict[str, Json]
    counts: tuple[int, ...]
    budget_s: float
    budget_bytes: int
    task_bytes: int
    step: int = 10


@dataclass(frozen=True)
class Size:
    """What a hub took at one count. seconds: for opening all tasks so far. bytes: PSS of the whole tree.

    processes: without the hub itself.
    """

    tasks: int
    seconds: float
    bytes: int
    processes: int


@dataclass
class CapacityResult:
    """`sizes`: at each of the counts; the last one is smaller than its count if the case was stopped."""

    sizes: list[Size] = field(default_factory=list)
    stopped: str | None = None
    """Why there are fewer tasks than the case asks for."""
    left_behind: int = 0
    not_forked: str = ""
    """See `measure.not_forked`."""


# --- inside -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_capacity(entries: dict[str, Json], state: str) -> AsyncIterator[Act]:
    """Answers ``{"tasks": n, "seconds": s}`` with ``{"tasks", "failures"}`` once n are open in all. A worker role.

    A task counts when each of its servers has answered `tools/list`; otherwise it is closed. If n are open already,
    the garbage is collected.
    """
    async with Hub(hub_config(entries, Path(state), max_tasks=_MANY)) as hub:

        async def act(request: Json) -> Json:
            failures: list[str] = []
            if request["tasks"] <= len(hub.tasks):
                gc.collect()
            with anyio.move_on_after(request["seconds"]):
                async with anyio.create_task_group() as opening:
                    for _ in range(request["tasks"] - len(hub.tasks)):
                        opening.start_soon(_open_one, hub, failures)
            return {"tasks": len(hub.tasks), "failures": failures}

        yield act


async def _open_one(hub: Hub, failures: list[str]) -> None:
    task = await hub.open_task()
    is_ready = False

    async def list_tools(server: str) -> None:
        check(not (await task.request(server, "tools/list"))["tools"])

    try:
        async with anyio.create_task_group() as listing:
            for server in task.servers:
                listing.start_soon(list_tools, server)
        is_ready = True
    except Exception as exc:
        reason = exc.exceptions[0] if isinstance(exc, ExceptionGroup) else exc
        failures.append(f"{type(reason).__name__}: {reason}"[:200])
    finally:
        if not is_ready:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await hub.close_task(task.id)


# --- outside ------------------------------------------------------------------------------------------------------


def measure_capacity(case: DensityCase) -> CapacityResult:
    """Run one case in a process of its own. Never raise for what happens there: see `CapacityResult.stopped`."""
    packed = CapacityResult()
    with tempfile.TemporaryDirectory() as state:
        worker = Worker("benchmarks.density.capacity:open_capacity", {"entries": case.entries, "state": state})
        try:
            worker.wait_ready()
            _Filling(case, worker, packed).run()
        except WorkerFailed as exc:
            packed.stopped = f"it failed: {exc}"
        finally:
            worker.close()
        packed.left_behind = worker.left_behind
        packed.not_forked = not_forked(Path(state))
    return packed


@dataclass
class _Filling:
    case: DensityCase
    worker: Worker
    packed: CapacityResult
    tasks: int = 0
    seconds: float = 0.0

    def run(self) -> None:
        room = room_bytes()
        for count in self.case.counts:
            while self.tasks < count and self.packed.stopped is None:
                self.packed.stopped = self._refusal(count) or self._open(count) or self._excess(room)
            self._look()
            if self.packed.stopped:
                return

    def _refusal(self, count: int) -> str | None:
        """Why no more tasks are opened."""
        if self.seconds >= self.case.budget_s:
            return f"its {self.case.budget_s:g} s were over"
        needed = min(self.case.step, count - self.tasks) * self.case.task_bytes
        return f"the next tasks may take {needed / GIB:.2f} GiB, too much" if needed > room_bytes() else None

    def _open(self, count: int) -> str | None:
        """Open the next group; return why not all of it is open, unless time was up."""
        wanted = min(self.tasks + self.case.step, count)
        left = self.case.budget_s - self.seconds
        began = time.perf_counter()
        answer = self.worker.ask({"tasks": wanted, "seconds": left}, within=left + 2 * _CLOSE_S)
        self.seconds += time.perf_counter() - began
        self.tasks = answer["tasks"]
        if answer["failures"]:
            return f"{len(answer['failures'])} tasks failed, the first with {answer['failures'][0]}"
        return None

    def _excess(self, room_before: int) -> str | None:
        """Why what there is takes too much; PSS is read only where the machine has lost so much memory."""
        if room_before - room_bytes() <= self.case.budget_bytes:
            return None
        taken = tree_pss_bytes(self.worker.pid)
        return f"it took {taken / GIB:.2f} GiB" if taken > self.case.budget_bytes else None

    def _look(self) -> None:
        self.worker.ask({"tasks": self.tasks, "seconds": 0.0})
        processes = len(tree(self.worker.pid)) - 1
        size = Size(self.tasks, self.seconds, tree_pss_bytes(self.worker.pid), processes)
        self.packed.sizes.append(size)
