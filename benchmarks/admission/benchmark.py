"""Does admission by the cache's tokens finish a sweep sooner? On a real engine, and on a model of it.

The agents of a `Workload` begin together. Their prompts need more tokens than the engine's cache holds. Each policy
lets the same agents begin their turns: all at once, a fixed number of tasks at a time, or by toolhub's ledger.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio
import httpx2

from benchmarks.admission.heat_map import HeatMapSettings, play_heat_map
from benchmarks.admission.measured import AgentScript, open_client, open_proxy_client, run_agents, warm_up
from benchmarks.admission.modelled import ModelledEngine, simulate
from benchmarks.admission.programs import ALL_AT_ONCE, LEDGER, PROXY_LEDGER, PolicyChoice, RunReport, Workload
from benchmarks.admission.tables import AdmissionResults, RowResults, outcome_of
from benchmarks.common.result import Benchmark, Outcome
from benchmarks.llm.prompts import open_writer
from benchmarks.llm.scripted_agent import Served
from benchmarks.model.samples import ConversationMix, Measured, SamplingPlan, Shape, measure_costs
from benchmarks.questions import QUESTIONS
from testbed.engine.install import installed
from testbed.engine.server import BLOCK_SIZE, EngineOptions, open_engine

_PATIENCE_S = 300.0
PLAN = SamplingPlan(
    [
        *(Shape(prefill, 0, 1) for prefill in (64, 400, 1200, 3000)),
        *(Shape(prefill, 0, 1, 4) for prefill in (300, 1000)),
        *(Shape(400, cached, 1) for cached in (1024, 3072)),
        *(Shape(100, 0, decode) for decode in (20, 80)),
        *(Shape(100, 0, 60, batch) for batch in (2, 6)),
        *(Shape(100, 3072, 60, batch) for batch in (1, 2, 4)),
    ],
    [ConversationMix("4 conversations", 4, 4, (1024, 1280), (384, 512), (20, 28))],
    repeats=2,
)
"""Contexts of up to 4,000 tokens: what the agents have."""
QUICK_PLAN = SamplingPlan(
    [Shape(*each) for each in ((64, 0, 1), (1200, 0, 1), (400, 0, 1, 3), (300, 1024, 1))]
    + [Shape(*each) for each in ((100, 0, 40), (100, 0, 40, 3), (100, 1024, 30), (100, 1024, 30, 2))],
    [ConversationMix("2 conversations", 2, 2, (512, 1024), (384,), (20, 28), (0.01, 0.05))],
    repeats=1,
)


@dataclass(frozen=True)
class AdmissionRow:
    """The settings of one table. blocks: of the engine's cache. rounds: of each policy, in turns.

    fixed: tasks at a time. The number that is best on the modelled engine is measured as well, unless `fits`.
    fits: the cache holds all that the agents need, so there is nothing to gain.
    """

    name: str
    blocks: int
    workload: Workload
    fixed: Sequence[int] = ()
    rounds: int = 1
    fits: bool = False


@dataclass(frozen=True)
class AdmissionEngine:
    """about: the first words of a note. open: an engine whose cache has so many blocks of `block` tokens."""

    about: str
    block: int
    open: Callable[[int], AbstractAsyncContextManager[Served]]
    measure: Callable[[Served], Awaitable[Measured]]


@dataclass(frozen=True)
class AdmissionScale:
    """sweep: the numbers of tasks at a time that are tried on the modelled engine.

    calibration_blocks: of the engine on which the model is calibrated. They hold all that the plan asks for.
    """

    rows: Sequence[AdmissionRow]
    ledgers: Sequence[PolicyChoice] = (LEDGER, PROXY_LEDGER)
    plan: SamplingPlan = PLAN
    calibration_blocks: int = 400
    sweep: Sequence[int] = range(2, 17)
    heat_map: HeatMapSettings = field(default_factory=HeatMapSettings)
    engine: AdmissionEngine | None = None
    """None: vLLM on this machine's CPU."""


@asynccontextmanager
async def _cpu_engine(blocks: int) -> AsyncIterator[Served]:
    # One block is reserved.
    async with open_engine(EngineOptions(model="mid", blocks=blocks + 1)) as engine:
        yield Served(engine.openai_url, engine.name)


def cpu_engine(plan: SamplingPlan) -> AdmissionEngine:
    """Raises EngineSetupError without `make engine`."""
    installed()
    about = "A real vLLM on the CPU with a model of random weights (35 M parameters)"
    return AdmissionEngine(about, BLOCK_SIZE, _cpu_engine, functools.partial(measure_costs, plan=plan))


def run(scale: AdmissionScale) -> Outcome:
    engine = scale.engine or cpu_engine(scale.plan)
    found = anyio.run(_measure, scale, engine)
    return outcome_of(found, engine.about)


async def _measure(scale: AdmissionScale, engine: AdmissionEngine) -> AdmissionResults:
    """Rows with the same cache share an engine. The model is calibrated on the first engine."""
    measured: Measured | None = None
    rows: dict[str, RowResults] = {}
    for blocks in dict.fromkeys([scale.calibration_blocks, *(row.blocks for row in scale.rows)]):
        async with engine.open(blocks) as served:
            measured = measured or await engine.measure(served)
            for row in scale.rows:
                if row.blocks == blocks:
                    rows[row.name] = await _measure_row(served, row, measured, engine.block, scale)
    assert measured is not None
    ordered = {row.name: rows[row.name] for row in scale.rows}
    heat_map = play_heat_map(scale.heat_map, measured.calibration.costs, engine.block, measured.budget)
    return AdmissionResults(measured, ordered, heat_map)


async def _measure_row(
    served: Served, row: AdmissionRow, measured: Measured, block: int, scale: AdmissionScale
) -> RowResults:
    """First all at once: the tokens that the engine counts there are those of the modelled engine's agents."""
    async with httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http:
        writer = await open_writer(http, served)
    planned = row.workload.traces()
    scripts = [AgentScript.of(trace, row.workload, writer) for trace in planned]
    found: dict[PolicyChoice, list[RunReport]] = {}
    async with AsyncExitStack() as stack:
        without = await stack.enter_async_context(open_client(served, has_admission=False))
        clients = {
            choice: await stack.enter_async_context(
                open_proxy_client(served) if choice.by_proxy else open_client(served, has_admission=True)
            )
            for choice in scale.ledgers
        }

        async def measure(choice: PolicyChoice) -> None:
            client = clients.get(choice, without)
            found.setdefault(choice, []).append(await run_agents(served, client, scripts, planned, choice.at_most))

        await warm_up(without, scripts)
        await measure(ALL_AT_ONCE)
        (first,) = found[ALL_AT_ONCE]
        traces = [trace.as_counted(agent.usages) for trace, agent in zip(planned, first.agents, strict=True)]
        site = ModelledEngine(measured.calibration.costs, row.blocks, block, measured.budget, first.shared)
        tried = [PolicyChoice(tasks) for tasks in scale.sweep]
        modelled = {choice: simulate(traces, choice, site) for choice in (ALL_AT_ONCE, *tried, LEDGER)}
        best = min(tried, key=lambda choice: modelled[choice].makespan_s)
        fixed = [] if row.fits else [PolicyChoice(tasks) for tasks in sorted({*row.fixed, best.at_most or 0})]
        others = [*scale.ledgers, *fixed]
        for number in range(row.rounds):
            for choice in (ALL_AT_ONCE, *others) if number else others:
                await measure(choice)
    return RowResults(site.capacity, row.workload, row.fits, best, found, modelled)


BENCHMARK = Benchmark(
    "admission",
    QUESTIONS["admission"],
    run,
    full=AdmissionScale(
        [
            AdmissionRow("A cache of 24k tokens", 189, Workload(2.0)),
            AdmissionRow("A cache of 15k tokens", 119, Workload(3.0)),
            AdmissionRow("Everything fits", 189, Workload(2.0, agents=5, turns=4), rounds=2, fits=True),
        ]
    ),
    quick=AdmissionScale(
        [
            AdmissionRow("A small cache", 48, Workload(0.5, agents=6, turns=3), fixed=(2,)),
            AdmissionRow("Everything fits", 48, Workload(0.5, agents=2, turns=3), fits=True),
        ],
        plan=QUICK_PLAN,
        calibration_blocks=48,
        sweep=(2, 4),
        heat_map=HeatMapSettings((10_000, 60_000), (1.0, 6.0), (2, 8)),
    ),
)
