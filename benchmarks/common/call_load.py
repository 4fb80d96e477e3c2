"""Makes calls through one variant, one after the other or several at a time, and measures their time. A worker role."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from benchmarks.common import callers
from benchmarks.common.callers import ToolCaller
from benchmarks.common.loop_lag import open_loop_lag
from benchmarks.common.worker_main import Act

Json = dict[str, Any]


@asynccontextmanager
async def open_load(variant: str, server: Json) -> AsyncIterator[Act]:
    """Answers ``{"calls": n, "in_flight": k}`` with ``{"seconds", "client_cpu_s", "hub_cpu_s", "latencies_us", ...}``.

    With ``"lags": true`` the answer also has ``"lags_ms"``: of the hub's loop, or of this process's loop if there is no
    hub.
    """
    async with getattr(callers, f"open_{variant}")(server) as caller:

        async def act(request: Json) -> Json:
            watched = _watched if request.get("lags") else measure
            return await watched(caller, request["calls"], request["in_flight"])

        yield act


async def _watched(caller: ToolCaller, calls: int, in_flight: int) -> Json:
    async with open_loop_lag() as ticks:

        async def own_lags_ms() -> list[float]:
            return ticks.take()

        lags_ms = caller.hub_lags_ms or own_lags_ms
        await lags_ms()
        return {**await measure(caller, calls, in_flight), "lags_ms": await lags_ms()}


async def measure(caller: ToolCaller, calls: int, in_flight: int) -> Json:
    latencies: list[float] = []

    async def one_after_the_other(count: int) -> None:
        for _ in range(count):
            began = time.perf_counter_ns()
            await caller.call()
            latencies.append((time.perf_counter_ns() - began) / 1e3)

    hub_cpu, cpu, began = _cpu_of(caller.hub_pid), time.process_time(), time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(in_flight):
            tasks.start_soon(one_after_the_other, max(1, calls // in_flight))
    return {
        "calls": len(latencies),
        "seconds": time.perf_counter() - began,
        "client_cpu_s": time.process_time() - cpu,
        "hub_cpu_s": _cpu_of(caller.hub_pid) - hub_cpu,
        "latencies_us": latencies if in_flight == 1 else [],
    }


def _cpu_of(pid: int | None) -> float:
    if pid is None:
        return 0.0
    from benchmarks.common.measure import cpu_seconds  # an interpreter that lacks psutil has no hub either

    return cpu_seconds(pid)
