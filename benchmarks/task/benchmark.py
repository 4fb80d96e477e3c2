"""How long does a whole research task take? Made-up tasks on a real engine, and modelled on many accelerators.

It compares MiroFlow's pattern with toolhub. Engine, turns, results and seconds of tools are the same for both. The
engine's model is calibrated on the real engine, and both its errors are reported.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio

from benchmarks.common.result import Benchmark, Outcome
from benchmarks.llm.scripted_agent import Served
from benchmarks.model.cache import BLOCK
from benchmarks.model.play import Site
from benchmarks.model.samples import PLAN, QUICK_PLAN, Measured, SamplingPlan, measure_costs
from benchmarks.questions import QUESTIONS
from benchmarks.task.modelled import ExtrapolationSettings, SiteCase, extrapolate, modelled, site_of, start_cpu_s
from benchmarks.task.replay import Replay, measure_replay
from benchmarks.task.tables import TaskResults, outcome_of
from benchmarks.task.variants import DROP_IN, SPAWN, TOOLHUB
from testbed.engine.install import installed
from testbed.engine.server import BLOCK_SIZE, EngineOptions, open_engine

VARIANTS = (SPAWN, DROP_IN, TOOLHUB)
_BLOCKS = 2048
"""Blocks of 128 tokens: room for everything that is played, and for the calibration."""


@dataclass(frozen=True)
class TaskEngine:
    """An engine. about: the first words of a note. tokens: what its cache holds. measure: finds what its steps cost."""

    about: str
    tokens: int
    open: Callable[[], AbstractAsyncContextManager[Served]]
    measure: Callable[[Served], Awaitable[Measured]]


@dataclass(frozen=True)
class TaskScale:
    replay: Replay = field(default_factory=Replay)
    extrapolation: ExtrapolationSettings = field(default_factory=ExtrapolationSettings)
    variants: Sequence[str] = VARIANTS
    plan: SamplingPlan = PLAN
    engine: TaskEngine | None = None
    """None: vLLM on this machine's CPU."""


@asynccontextmanager
async def _cpu_engine() -> AsyncIterator[Served]:
    async with open_engine(EngineOptions(model="mid", blocks=_BLOCKS + 1)) as engine:
        yield Served(engine.openai_url, engine.name)


def cpu_engine(plan: SamplingPlan) -> TaskEngine:
    """Return vLLM on this CPU. Raises EngineSetupError without `make engine`."""
    installed()
    about = "A real vLLM on the CPU with a model of random weights (35 M parameters)"
    return TaskEngine(about, _BLOCKS * BLOCK_SIZE, _cpu_engine, lambda served: measure_costs(served, plan))


def run(scale: TaskScale) -> Outcome:
    engine = scale.engine or cpu_engine(scale.plan)
    found = anyio.run(_measure, scale, engine)
    return outcome_of(found, scale.replay, scale.extrapolation, engine.about)


async def _measure(scale: TaskScale, engine: TaskEngine) -> TaskResults:
    async with engine.open() as served:
        measured = await engine.measure(served)
        rounds = await measure_replay(served, scale.replay, scale.variants)
    start = start_cpu_s(rounds[SPAWN])
    site = site_of(measured.calibration.costs, engine.tokens // BLOCK, measured.budget, os.cpu_count() or 1)
    again = {variant: modelled(variant, found, site, start) for variant, found in rounds.items()}
    return TaskResults(measured, rounds, again, start, extrapolate(scale.extrapolation, start))


BENCHMARK = Benchmark(
    "task",
    QUESTIONS["task"],
    run,
    full=TaskScale(plan=replace(PLAN, repeats=2)),
    quick=TaskScale(
        Replay(tasks=2, turns=4, rounds=1),
        ExtrapolationSettings([SiteCase("12 tasks of a tenth, 2 engines", 12, Site(engines=2))], (), (), scale=0.1),
        plan=QUICK_PLAN,
    ),
)
