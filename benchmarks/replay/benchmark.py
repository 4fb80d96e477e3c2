"""What does recording cost, how fast is a replay, and what does a second attempt save with shared results?

Recording and replay: one hub in this process and a server over stdio that costs almost nothing. Shared results: tasks
that search and read pages, with the real page server and stand-ins of the services behind it that take their time.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common.measure import interleaved, median, percentile, spread
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.server_commands import lean_echo
from benchmarks.overlap.services import SITE, SlowServices, open_services, servers
from benchmarks.overlap.tasks import Search, published_task
from benchmarks.questions import QUESTIONS
from toolhub import Hub, HubTask, parse_config

_PLAIN, _RECORD, _REPLAY = "no cassette", "recorded", "replayed"
_IN_FLIGHT = 8
_TASK = "bench"
_REPEATED = 0.7
"""The share of searches that a later attempt has in common with an earlier one."""


@dataclass(frozen=True)
class ReplayScale:
    """calls: of each round and size. sizes: characters of a result.

    tasks, searches: of each attempt. scale: seconds of the measurement for one of a task.
    """

    rounds: int
    calls: int
    sizes: tuple[int, ...]
    tasks: int
    searches: int
    scale: float


def run(scale: ReplayScale) -> Outcome:
    outcome = Outcome(notes=[*_NOTES])
    for size in scale.sizes:
        asyncio.run(_calls(scale, size, outcome))
    asyncio.run(_attempts(scale, outcome))
    return outcome


# --- a call -----------------------------------------------------------------------------------------------------------


async def _calls(scale: ReplayScale, size: int, outcome: Outcome) -> None:
    latencies: dict[str, list[float]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    # Text that compresses about as well as a page.
    words = random.Random(0).choices([f"word{number}" for number in range(2000)], k=size // 7 + 1)
    text = " ".join(words)[:size]
    with tempfile.TemporaryDirectory() as folder:
        tape = Path(folder, "tape")
        recorded = 0
        async with AsyncExitStack() as stack:
            tasks = {
                way: await stack.enter_async_context(_echo_task(Path(folder), tape, way)) for way in (_PLAIN, _RECORD)
            }
            for number, way in interleaved([_PLAIN, _RECORD], scale.rounds):
                numbers = range(recorded, recorded + scale.calls)
                recorded += scale.calls if way == _RECORD else 0
                await _round(tasks[way], numbers, text, way, latencies, rates, cpu, keep=number > 0)
        async with _echo_task(Path(folder), tape, _REPLAY) as task:
            for number in range(scale.rounds + 1):
                numbers = range(number * scale.calls, (number + 1) * scale.calls)
                await _round(task, numbers, text, _REPLAY, latencies, rates, cpu, keep=number > 0)
    rows: list[Json] = [
        {
            "way": way,
            "p50_us": median(latencies[way]),
            "p99_us": percentile(latencies[way], 0.99),
            "cpu_us": median(cpu[way]),
            "per_s": median(rates[way]),
        }
        for way in (_PLAIN, _RECORD, _REPLAY)
    ]
    outcome.tables.append(Table(f"A call with a result of {size:,} characters", _COLUMNS, rows))
    outcome.raw[f"calls/{size}"] = {
        way: {"latency_us": spread(latencies[way]), "per_s_by_round": rates[way], "cpu_us_by_round": cpu[way]}
        for way in (_PLAIN, _RECORD, _REPLAY)
    }
    if size == scale.sizes[0]:
        plain, record, replay = rows
        outcome.targets += [
            Target("recording adds, p50", record["p50_us"] - plain["p50_us"], 50, "µs"),
            Target(f"replay, {_IN_FLIGHT} in flight", replay["per_s"], 5000, "calls/s", at_most=False),
        ]


@asynccontextmanager
async def _echo_task(folder: Path, tape: Path, way: str) -> AsyncIterator[HubTask]:
    mode = {_RECORD: "record", _REPLAY: "replay"}.get(way)
    hub: Json = {"state_dir": str(folder / f"state-{way.replace(' ', '-')}")}
    if mode is not None:
        hub["cassette"] = {"dir": str(tape), "mode": mode}
    server = lean_echo()
    spec = {"command": server.argv[0], "args": list(server.argv[1:]), "stateful": False}
    async with Hub(parse_config({"hub": hub, "servers": {"echo": spec}}, environ={})) as opened:
        async with opened.task(_TASK) as task:
            yield task


async def _round(
    task: HubTask, numbers: range, text: str, way: str, latencies: Any, rates: Any, cpu: Any, *, keep: bool
) -> None:
    """Make the calls: half of them one after the other, half of them some at a time."""
    half = len(numbers) // 2
    one_by_one, together = numbers[:half], iter(numbers[half:])

    async def call(number: int) -> float:
        began = time.perf_counter()
        result = await task.call("echo", "echo", {"text": f"{number} {text}"})
        seconds = time.perf_counter() - began
        if result.text != f"{number} {text}":
            raise RuntimeError(f"call {number} was answered with {result.text[:100]!r}")
        return seconds * 1e6

    async def caller() -> None:
        for number in together:
            await call(number)

    cpu_s = time.process_time()
    found = [await call(number) for number in one_by_one]
    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(_IN_FLIGHT)))
    seconds = time.perf_counter() - began
    cpu_s = time.process_time() - cpu_s
    if keep:
        latencies[way] += found
        rates[way].append((len(numbers) - half) / seconds)
        cpu[way].append(cpu_s / len(numbers) * 1e6)


# --- attempts ---------------------------------------------------------------------------------------------------------


async def _attempts(scale: ReplayScale, outcome: Outcome) -> None:
    first = [published_task(number, scale.searches) for number in range(scale.tasks)]
    others = [published_task(scale.tasks + number, scale.searches) for number in range(scale.tasks)]
    partly = [_mixed(mine, other) for mine, other in zip(first, others, strict=True)]
    ways = {
        "first attempt, nothing shared": (first, None),
        "second attempt, nothing shared": (first, None),
        "first attempt, results are kept": (first, "kept"),
        "second attempt, the same calls": (first, "kept"),
        f"second attempt, {_REPEATED:.0%} of the searches the same": (partly, "kept"),
    }
    rows: list[Json] = []
    with tempfile.TemporaryDirectory() as folder:
        async with open_services(scale.scale) as services:
            for place, (way, (tasks, shared)) in zip(count(), ways.items(), strict=False):
                services.know({search.query: search for task in [*first, *others] for search in task})
                state = Path(folder, f"state-{place}")
                seconds, calls, taken = await _attempt(
                    scale, services, tasks, state, Path(folder, shared or "none"), shared
                )
                rows.append({"way": way, "tool_s": median(seconds), "calls": calls, "hits": 100 * taken / calls})
                outcome.raw[f"attempts/{way}"] = {"tool_s": seconds, "calls": calls, "shared": taken}
    for row in rows:
        row["times"] = ratio(row["tool_s"], rows[1]["tool_s"])
    title = f"{scale.tasks} tasks of {scale.searches} searches, one attempt after the other, a hub each"
    outcome.tables.append(Table(title, _ATTEMPT_COLUMNS, rows))
    outcome.targets.append(
        Target("tool seconds, second attempt with the same calls ÷ nothing shared", rows[3]["times"], 0.35, "×")
    )


def _mixed(mine: list[Search], other: list[Search]) -> list[Search]:
    """Return a task of which a part is that of an earlier attempt."""
    return [
        one if place % 10 < _REPEATED * 10 else another
        for place, (one, another) in enumerate(zip(mine, other, strict=True))
    ]


async def _attempt(
    scale: ReplayScale, services: SlowServices, tasks: list[list[Search]], state: Path, kept: Path, shared: str | None
) -> tuple[list[float], int, int]:
    """Play all tasks at once on a new hub. Return the modelled tool seconds of each, all calls and shared results."""
    hub: Json = {"state_dir": str(state)}
    if shared is not None:
        hub["shared_results"] = {"dir": str(kept)}
    found = servers(services, may_guess=False)
    for name, tool in (("search", "google_search"), ("reader", "convert_to_markdown")):
        found[name]["tools"] = {"policy": {tool: {"read_only": True, "speculative": "deny"}}}
    del found["extract"]
    async with Hub(parse_config({"hub": hub, "servers": found}, environ={})) as opened, AsyncExitStack() as stack:
        scopes = [await stack.enter_async_context(opened.task()) for _ in tasks]
        seconds = await asyncio.gather(*(_play(scope, task) for scope, task in zip(scopes, tasks, strict=True)))
        told = [scope.statistics() for scope in scopes]
    return (
        [one / scale.scale for one in seconds],
        sum(one.calls for one in told),
        sum(one.shared_results for one in told),
    )


async def _play(task: HubTask, searches: list[Search]) -> float:
    began = time.perf_counter()
    for search in searches:
        await task.call("search", "google_search", {"q": search.query})
        for page, _ in search.opened:
            await task.call("reader", "convert_to_markdown", {"uri": SITE + page.path})
    return time.perf_counter() - began


_COLUMNS = [
    Column("way", "way"),
    Column("p50_us", "p50 µs"),
    Column("p99_us", "p99 µs"),
    Column("cpu_us", "CPU µs of the hub's process"),
    Column("per_s", f"calls/s, {_IN_FLIGHT} in flight"),
]
_ATTEMPT_COLUMNS = [
    Column("way", "way"),
    Column("tool_s", "tool s per task", 1),
    Column("times", "÷ nothing shared", 2),
    Column("calls", "calls"),
    Column("hits", "shared results %"),
]
_NOTES = (
    "A call: hub and caller in one process on asyncio, the server over stdio; two hubs take turns, round 0 is "
    "discarded. Calls one after the other give the times, 8 callers the rate. The file is written while the calls run, "
    "and CPU has that. The arguments are as long as the result.",
    "Attempts: searches as published traces have them, with the times of `toolhub bench overlap`, scaled; no call is "
    f"repeated within an attempt. {_REPEATED:.0%} is the most that TVCache found (arXiv 2602.10986).",
)

BENCHMARK = Benchmark(
    "replay",
    QUESTIONS["replay"],
    run,
    full=ReplayScale(rounds=6, calls=1000, sizes=(100, 20_000), tasks=8, searches=20, scale=0.05),
    quick=ReplayScale(rounds=3, calls=400, sizes=(100, 20_000), tasks=4, searches=10, scale=0.02),
)
