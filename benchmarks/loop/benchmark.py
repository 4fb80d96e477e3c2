"""What does the agent loop gain beside a plain one? Early calls, slots and shared searches, on a real engine."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import anyio

from benchmarks.common.measure import median
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, ratio
from benchmarks.llm.scripted_agent import Served
from benchmarks.loop.dispatch import TURNS, VARIANTS, WrittenTurn, measure_dispatch
from benchmarks.loop.long_task import LongTask, measure_task
from benchmarks.loop.many_agents import OURS, PLAIN, ManyAgents, measure_many_agents
from benchmarks.questions import QUESTIONS
from testbed.engine.install import installed
from testbed.engine.server import EngineOptions, open_engine

MANY_AGENTS = (
    ManyAgents("64 agents, 32 in flight, a search of 0.8 s, 10 distinct queries", 64, 32, 0.8, 10),
    ManyAgents("20 agents, 8 in flight, a search of 0.4 s, 20 distinct queries", 20, 8, 0.4, 20),
)
_LOOPS = {PLAIN: "plain, keeps its slot while it searches", OURS: "toolhub's loop and hub"}


@dataclass(frozen=True)
class LoopEngines:
    """Opens engines: one for many agents and the long task, one that writes as slowly as a large model.

    about: the engine and its model, as the first words of a sentence.
    """

    about: str
    fast: Callable[[], AbstractAsyncContextManager[Served]]
    writing: Callable[[], AbstractAsyncContextManager[Served]]


@dataclass(frozen=True)
class LoopScale:
    """rounds: of each part and variant."""

    rounds: int
    agents_rounds: int
    task_rounds: int
    turns: Sequence[WrittenTurn] = TURNS
    agents: Sequence[ManyAgents] = MANY_AGENTS
    task: LongTask = field(default_factory=LongTask)
    engines: LoopEngines | None = None
    """None: vLLM on this machine's CPU."""


@dataclass(frozen=True)
class LoopResults:
    """The rounds of each part, by turn or case and by variant."""

    dispatch: dict[str, dict[str, list[Json]]]
    agents: dict[str, dict[str, list[Json]]]
    task: list[Json]


@asynccontextmanager
async def _cpu_engine(model: Literal["tiny", "mid"]) -> AsyncIterator[Served]:
    async with open_engine(EngineOptions(model=model, block_size=32)) as engine:
        yield Served(engine.openai_url, engine.name)


def cpu_engines() -> LoopEngines:
    """The smallest model where the loop is measured. Raises EngineSetupError without `make engine`."""
    installed()
    return LoopEngines(
        "A real vLLM on the CPU with models of random weights (35 M parameters for the turns, else 1.5 M)",
        functools.partial(_cpu_engine, "tiny"),
        functools.partial(_cpu_engine, "mid"),
    )


def run(scale: LoopScale) -> Outcome:
    engines = scale.engines or cpu_engines()
    found = anyio.run(_measure, scale, engines)
    return Outcome(
        tables=[_dispatch_table(found), *(_agents_table(found, case) for case in scale.agents), _task_table(found)],
        notes=_notes(scale, engines),
        raw={"dispatch": found.dispatch, "agents": found.agents, "task": found.task},
    )


async def _measure(scale: LoopScale, engines: LoopEngines) -> LoopResults:
    async with engines.writing() as served:
        dispatch = await measure_dispatch(served, scale.turns, scale.rounds)
    async with engines.fast() as served:
        agents = {case.name: await measure_many_agents(served, case, scale.agents_rounds) for case in scale.agents}
        return LoopResults(dispatch, agents, await measure_task(served, scale.task, scale.task_rounds))


# --- tables -------------------------------------------------------------------------------------------------------


def _middle(rounds: Sequence[Json], key: str) -> float:
    return median([each[key] for each in rounds])


def _dispatch_table(found: LoopResults) -> Table:
    rows: list[Json] = []
    for name, variants in found.dispatch.items():
        wall: Json = {variant: _middle(variants[variant], "wall_s") for variant in VARIANTS}
        rows.append(
            {
                "turn": name,
                "stream_s": _middle(variants["streaming"], "stream_s"),
                **wall,
                "gain": ratio(wall["together"], wall["streaming"]),
                "gain_over_one": ratio(wall["one by one"], wall["streaming"]),
                "early": _middle(variants["streaming"], "early"),
                "count": len(variants["streaming"]),
            }
        )
    columns = [
        Column("turn", "the model writes"),
        Column("stream_s", "writing, s", 2),
        Column("one by one", "after it, one by one, s", 2),
        Column("together", "after it, together, s", 2),
        Column("streaming", "as it streams, s", 2),
        Column("gain", "together ÷ streaming", 2),
        Column("gain_over_one", "one by one ÷ streaming", 2),
        Column("early", "calls started early"),
        Column("count", "rounds"),
    ]
    return Table("A turn's wall time, by when its calls start", columns, rows)


def _agents_table(found: LoopResults, case: ManyAgents) -> Table:
    loops = found.agents[case.name]
    plain = _middle(loops[PLAIN], "wall_s")
    rows = [
        {
            "way": _LOOPS[variant],
            "wall_s": (wall := _middle(rounds, "wall_s")),
            "gain": ratio(plain, wall),
            "executions": _middle(rounds, "executions"),
            "prompt": _middle(rounds, "prompt"),
            "cached": 100 * _middle(rounds, "cached") / _middle(rounds, "prompt"),
            "written": _middle(rounds, "written"),
            "cpu_s": _middle(rounds, "cpu_s"),
            "prefix_s": _middle(rounds, "prefix_s") if variant == OURS else None,
            "count": len(rounds),
        }
        for variant, rounds in loops.items()
    ]
    columns = [
        Column("way", "loop"),
        Column("wall_s", "wall s", 2),
        Column("gain", "plain ÷ this", 2),
        Column("executions", "searches executed"),
        Column("prompt", "prompt tokens"),
        Column("cached", "% cached"),
        Column("written", "tokens written"),
        Column("cpu_s", "CPU s of loop and hub", 2),
        Column("prefix_s", "common prompt first, s", 2),
        Column("count", "rounds"),
    ]
    return Table(case.name, columns, rows)


def _task_table(found: LoopResults) -> Table:
    keys = ("turns", "tool_calls", "wall_s", "engine_s", "prompt", "longest")
    row: Json = {key: _middle(found.task, key) for key in keys}
    row |= {
        "first_ms": 1e3 * _middle(found.task, "first_ttft_s"),
        "ttft_ms": 1e3 * _middle(found.task, "ttft_s"),
        "turn_ms": 1e3 * _middle(found.task, "turn_s"),
        "cached": 100 * _middle(found.task, "cached_share"),
        "name": "search, Python sandbox and clock",
        "count": len(found.task),
    }
    columns = [
        Column("name", "tools"),
        Column("turns", "turns"),
        Column("tool_calls", "calls"),
        Column("wall_s", "wall s", 2),
        Column("engine_s", "of it at the engine, s", 2),
        Column("first_ms", "first TTFT, ms"),
        Column("ttft_ms", "median TTFT after that, ms"),
        Column("turn_ms", "median turn, ms"),
        Column("prompt", "prompt tokens"),
        Column("cached", "% cached after the first turn"),
        Column("longest", "longest prompt"),
        Column("count", "rounds"),
    ]
    return Table("One long task through the hub", columns, [row])


def _notes(scale: LoopScale, engines: LoopEngines) -> list[str]:
    return [
        f"{engines.about}; what they say is prescribed by "
        "structured outputs, so they write real text token by token. Calls are MiroFlow's XML.",
        "Calls of a turn that take equally long end together however early the first ones start, so streaming gains "
        "there only over running them one by one; it gains where text follows the call, or an early call is slow.",
        "The many agents' prompts begin with 2,048 common tokens beside the tools' description, new in each round. The "
        "plain loop is the openai SDK, one kept HTTP client for the search, and a semaphore around each agent; ours "
        "has as many requests in flight, computes the common prompt once before, and asks the hub's search server, "
        "which sends equal queries to the service once. Making the hub and the clients is not counted.",
        f"The long task: {scale.task.turns} turns, keep {scale.task.keep} in strides of {scale.task.stride}, hints as "
        "they are by default; the sandbox's start is part of its first call.",
    ]


BENCHMARK = Benchmark(
    "loop",
    QUESTIONS["loop"],
    run,
    full=LoopScale(rounds=2, agents_rounds=3, task_rounds=1),
    quick=LoopScale(
        rounds=1,
        agents_rounds=1,
        task_rounds=1,
        turns=TURNS[2:],
        agents=(ManyAgents("8 agents, 4 in flight, a search of 0.4 s, 4 distinct queries", 8, 4, 0.4, 4),),
        task=LongTask(turns=6),
    ),
)
