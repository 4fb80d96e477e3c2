"""Many sandboxes at once: what each costs in memory, and what a storm of new ones costs those that are there."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass, field

import anyio
import psutil
from toolhub_sandbox import OwnerSandboxes, Sandbox, Sandboxes

from benchmarks.common.measure import pss_bytes, tree
from benchmarks.common.result import Json
from benchmarks.sandbox import ipykernel
from benchmarks.sandbox.orphans import Orphans
from benchmarks.sandbox.startup import POOL, evaluate, first_result, open_scope, settings

GIB = 2**30
# What a hub allows itself: `limits.max_starts`, two per core.
STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
# What the kernel frees with a delay (namespaces, page tables) has been freed by then.
_SETTLE_S = 1.0
_USE = "len(str(list(range(1000))))"


@dataclass
class Storm:
    """Milliseconds: calls in existing sandboxes, before and during the storm; first results of new sandboxes."""

    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    has_begun: bool = False
    is_over: bool = False


# --- memory -------------------------------------------------------------------------------------------------------


async def measure_memory(profile: str, count: int, left: Orphans) -> Json:
    """Return bytes per live, used sandbox: what the machine lost (all of it), and PSS (pages of processes only)."""
    async with open_scope(profile, 0) as (_, scope):
        await _use(scope, 1)  # starts the zygote, and loads modules into this process
        available, pss = _available_bytes(), _pss_below()
        await _use(scope, count)
        result = {
            "count": count,
            "available_bytes": (available - _available_bytes()) / count,
            "pss_bytes": _per(pss, _pss_below(), count),
        }
        left.look()
        return result


async def measure_kernels(count: int) -> Json:
    async with ipykernel.open_kernel():
        pass  # the first sandbox loads modules into this process
    available = _available_bytes()
    async with anyio.create_task_group() as tasks:
        running: list[ipykernel.Kernel] = []
        done, ready = anyio.Event(), anyio.Event()

        async def keep() -> None:
            async with ipykernel.open_kernel() as (one, _):
                await one.evaluate(_USE)
                running.append(one)
                if len(running) == count:
                    ready.set()
                await done.wait()

        for _ in range(count):
            tasks.start_soon(keep)
        await ready.wait()
        used = available - _available_bytes()
        pss = sum(one.pss_bytes for one in running)
        done.set()
    return {"count": count, "available_bytes": used / count, "pss_bytes": pss / count}


async def _use(scope: OwnerSandboxes, count: int) -> None:
    for _ in range(count):
        done = await (await scope.create()).exec_code(_USE)
        if done.error is not None:
            raise RuntimeError(f"{done.error}; a sandbox that was not used must not count")


def _available_bytes() -> int:
    gc.collect()
    time.sleep(_SETTLE_S)
    return psutil.virtual_memory().available


def _pss_below() -> list[int]:
    return [pss_bytes(process.pid) for process in tree(os.getpid())[1:]]


def _per(before: list[int], after: list[int], count: int) -> float | None:
    """Return what each added; None if the kernel does not show all processes' pages (only root sees them)."""
    return (sum(after) - sum(before)) / count if all(after) else None


# --- a storm ------------------------------------------------------------------------------------------------------


async def measure_storm(there: int, asked: int, warm_up_s: float, think_s: float, left: Orphans) -> Storm:
    """`asked` owners ask for a sandbox at once while `there` of them run code, with a pause of `think_s`."""
    storm = Storm()
    limiter = anyio.CapacityLimiter(STARTS_AT_ONCE)
    async with Sandboxes(settings("bare", POOL), start_limiter=lambda: limiter) as sandboxes:
        old = [await sandboxes.for_owner(f"old {number}").create() for number in range(there)]
        async with anyio.create_task_group() as calling:
            for number, sandbox in enumerate(old):
                calling.start_soon(_run_on, sandbox, think_s, number / there, storm)
            await anyio.sleep(warm_up_s)
            storm.has_begun = True
            began = time.perf_counter()
            async with anyio.create_task_group() as asking:
                for number in range(asked):
                    asking.start_soon(_ask, sandboxes.for_owner(f"new {number}"), storm)
            storm.wall_s = time.perf_counter() - began
            storm.is_over = True
        left.look()
    return storm


async def _run_on(sandbox: Sandbox, think_s: float, phase: float, storm: Storm) -> None:
    """Call until the storm is over. A call that overlaps the storm counts as one during it."""
    await anyio.sleep(think_s * phase)  # not in step with the others
    while not storm.is_over:
        began = time.perf_counter()
        await evaluate(sandbox)
        took = (time.perf_counter() - began) * 1e3
        (storm.during if storm.has_begun else storm.before).append(took)
        await anyio.sleep(think_s)


async def _ask(scope: OwnerSandboxes, storm: Storm) -> None:
    _, took = await first_result(scope)
    storm.first.append(took)
