"""How long from asking for a sandbox to its first result, and what a call costs afterwards; in turns with a kernel."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from toolhub_sandbox import OwnerSandboxes, Sandbox, Sandboxes

from benchmarks.common.result import hub_config
from benchmarks.sandbox import ipykernel
from benchmarks.sandbox.orphans import Orphans
from toolhub import Hub
from toolhub.config import SandboxSettings

POOL = 4
# More than any benchmark here needs: these limits are not what is measured.
MANY = 1000
# A machine under load refills slowly; far longer than that.
_REFILL_S = 60.0
CODE = "1 + 1"
Times = dict[str, list[float]]


@dataclass
class StartupTimes:
    """Milliseconds to the first result and to the end, by variant, and of each call, by kind."""

    first: Times = field(default_factory=lambda: defaultdict(list))
    end: Times = field(default_factory=lambda: defaultdict(list))
    call: Times = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class StartupRounds:
    """Each round starts one kernel and one zygote per profile, `starts` sandboxes per variant, and `calls` calls."""

    number: int
    starts: int
    calls: int
    commands: int


def settings(profile: str, pool: int) -> SandboxSettings:
    """Return settings with one profile, this pool size and limits that no benchmark reaches."""
    plain = SandboxSettings().profiles[profile].model_dump(exclude_unset=True)
    profiles = {profile: plain | {"pool": pool}}
    return SandboxSettings.model_validate(
        {"profiles": profiles, "default_profile": profile, "max_sandboxes": MANY, "max_per_task": MANY}
    )


@asynccontextmanager
async def open_scope(profile: str, pool: int) -> AsyncIterator[tuple[Sandboxes, OwnerSandboxes]]:
    async with Sandboxes(settings(profile, pool)) as sandboxes:
        yield sandboxes, sandboxes.for_owner("benchmark")


@asynccontextmanager
async def open_in_hub() -> AsyncIterator[Sandbox]:
    """A sandbox of a task, as an agent has it."""
    with tempfile.TemporaryDirectory() as state:
        async with Hub(hub_config({}, Path(state))) as hub, hub.task("benchmark") as task:
            yield await task.sandboxes.create("bare")


async def measure(profiles: tuple[str, ...], rounds: StartupRounds, left: Orphans, *, kernels: bool) -> StartupTimes:
    times = StartupTimes()
    async with AsyncExitStack() as stack:
        open_ones = {
            (profile, pool): await stack.enter_async_context(open_scope(profile, pool))
            for profile in profiles
            for pool in (POOL, 0)
        }
        in_hub = await stack.enter_async_context(open_in_hub())
        for number in range(rounds.number + 1):
            round_ = StartupTimes()
            for (profile, pool), (sandboxes, scope) in open_ones.items():
                for _ in range(rounds.starts):
                    await _wait_full(sandboxes, pool)
                    await _start(scope, f"{profile}, {'pooled' if pool else 'unpooled'}", round_)
            for profile in profiles:
                await _start_with_zygote(profile, round_)
            await _call(in_hub, rounds, round_)
            if kernels:
                await _use_kernel(profiles, rounds, round_)
            if number > 0:  # round 0 is the warm-up
                _add(round_, times)
        left.look()
    return times


async def _wait_full(sandboxes: Sandboxes, pool: int) -> None:
    await sandboxes.warm()
    with anyio.fail_after(_REFILL_S):
        while sandboxes.statistics().ready < pool:
            await anyio.sleep(0.001)


async def first_result(scope: OwnerSandboxes) -> tuple[Sandbox, float]:
    """Return a new sandbox that has answered once, and the milliseconds that took."""
    began = time.perf_counter()
    sandbox = await scope.create()
    await evaluate(sandbox)
    return sandbox, (time.perf_counter() - began) * 1e3


async def evaluate(sandbox: Sandbox) -> None:
    done = await sandbox.exec_code(CODE)
    if done.error is not None:
        raise RuntimeError(f"{done.error}; a failed execution must not count as a fast one")


async def _start(scope: OwnerSandboxes, variant: str, times: StartupTimes) -> None:
    sandbox, took = await first_result(scope)
    times.first[variant].append(took)
    began = time.perf_counter()
    await sandbox.kill()
    times.end[variant].append((time.perf_counter() - began) * 1e3)


async def _start_with_zygote(profile: str, times: StartupTimes) -> None:
    async with open_scope(profile, 0) as (_, scope):
        _, took = await first_result(scope)
    times.first[f"{profile}, zygote"].append(took)


async def _call(sandbox: Sandbox, rounds: StartupRounds, times: StartupTimes) -> None:
    async def command() -> None:
        done = await sandbox.run_command("true")
        if done.exit_code:
            raise RuntimeError(f"the command failed: {done}")

    times.call["exec"] += await _timed(lambda: evaluate(sandbox), rounds.calls)
    times.call["command"] += await _timed(command, rounds.commands)


async def _use_kernel(profiles: tuple[str, ...], rounds: StartupRounds, times: StartupTimes) -> None:
    async with ipykernel.open_kernel(CODE) as (used, took):
        times.first["kernel"].append(took)
        times.call["kernel"] += await _timed(lambda: used.evaluate(CODE), rounds.calls)
    if "data" in profiles:
        modules = SandboxSettings().profiles["data"].preload
        async with ipykernel.open_kernel(f"[__import__(name) for name in {modules}] and {CODE}") as (_, took):
            times.first["kernel with data"].append(took)


async def _timed(call: Callable[[], Awaitable[Any]], times: int) -> list[float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def _add(one: StartupTimes, to: StartupTimes) -> None:
    for name in ("first", "end", "call"):
        for variant, values in getattr(one, name).items():
            getattr(to, name)[variant] += values
