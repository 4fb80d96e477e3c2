"""Agents of one run that call a slow service through a served hub, each in a closed loop. A worker role.

An agent thinks, asks, and thinks again. What it wants is drawn beforehand from a generator of its own, so that both
variants get the same requests. A call has a deadline for everything, waiting and retries included. Who is refused
comes back after the pause that the refusal names, `ATTEMPTS` times at most, and only if that is before the deadline.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import anyio

import toolhub
from benchmarks.common.result import Json
from benchmarks.common.worker_main import Act
from toolhub import CallTimeout, Overloaded

SERVER, TOOL = "slow", "work"
ATTEMPTS = 5
# The pause after a refusal that names none.
_PAUSE_S = 1.0
# At most this share is added to the pause; otherwise all refused callers come back together.
_JITTER = 0.25

# The deadline of a burst's calls: longer than any window.
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Habits:
    """Medians in seconds and spreads of log-normal distributions; work_s is a mean."""

    think_s: float = 0.3
    think_sigma: float = 0.75
    deadline_s: float = 10.0
    deadline_sigma: float = 0.5
    work_s: float = 0.33
    work_sigma: float = 0.5

    def draw(self, source: random.Random) -> tuple[float, float, float]:
        """Return (think, deadline, work) of one call, in seconds."""
        mean_to_median = self.work_sigma**2 / 2
        return (
            source.lognormvariate(math.log(self.think_s), self.think_sigma),
            source.lognormvariate(math.log(self.deadline_s), self.deadline_sigma),
            source.lognormvariate(math.log(self.work_s) - mean_to_median, self.work_sigma),
        )


@dataclass
class RunOutcomes:
    """What became of the calls of one run.

    answered: per task, within the deadline. late: sent, but answered too late or never. expired: still waiting at the
    deadline. refusals: of attempts. given_up: calls that ended with a refusal.
    """

    answered: list[int]
    latencies_s: list[float] = field(default_factory=list)
    late: int = 0
    expired: int = 0
    refusals: int = 0
    given_up: int = 0


@asynccontextmanager
async def open_agents() -> AsyncIterator[Act]:
    """Answers ``{"address", "run", "tasks", "window_s", "seed", "habits"}`` with a `RunOutcomes`, after window_s.

    With ``"burst": n`` each task instead asks n times at once and waits as long as it takes. Calls in flight at the end
    do not count.
    """

    async def act(request: Json) -> Json:
        tally = RunOutcomes([0] * request["tasks"])
        async with toolhub.connect(request["address"]) as hub:
            tasks = [await hub.open_task(run=request["run"]) for _ in range(request["tasks"])]
            for task in tasks:
                await task.tools(SERVER)
            with anyio.move_on_after(request["window_s"]):
                async with anyio.create_task_group() as agents:
                    for number, task in enumerate(tasks):
                        agents.start_soon(_live, task, number, request, tally)
            for task in tasks:
                await task.aclose()
        return asdict(tally)

    yield act


async def _live(task: Any, number: int, request: Json, tally: RunOutcomes) -> None:
    """Run one agent until it is cancelled."""
    source = random.Random(f"{request['seed']} {request['run']} {number}")
    jitter = random.Random(number)
    habits = Habits(**request["habits"])

    async def call(work_s: float, deadline: float) -> None:
        await _insist(task, number, work_s, deadline, jitter, tally)

    burst = request.get("burst")
    if burst is not None:
        patience = anyio.current_time() + _PATIENCE_S
        async with anyio.create_task_group() as calls:
            for _ in range(burst):
                calls.start_soon(call, habits.draw(source)[2], patience)
        return
    while True:
        think_s, deadline_s, work_s = habits.draw(source)
        await anyio.sleep(think_s)
        await call(work_s, anyio.current_time() + deadline_s)


async def _insist(
    task: Any, number: int, work_s: float, deadline: float, jitter: random.Random, tally: RunOutcomes
) -> None:
    """Make one call, with retries."""
    began = anyio.current_time()
    for _ in range(ATTEMPTS):
        left = deadline - anyio.current_time()
        try:
            await task.call(SERVER, TOOL, {"text": "", "work_s": work_s}, timeout=left)
        except Overloaded as refusal:
            tally.refusals += 1
            pause = (refusal.retry_after or _PAUSE_S) * (1 + _JITTER * jitter.random())
            if anyio.current_time() + pause >= deadline:
                break
            await anyio.sleep(pause)
        except CallTimeout as timeout:
            tally.late += timeout.sent != "no"
            tally.expired += timeout.sent == "no"
            return
        else:
            tally.answered[number] += 1
            tally.latencies_s.append(anyio.current_time() - began)
            return
    tally.given_up += 1
