"""What does it give to begin tools before they are called, and what is in vain?

Tasks search and read pages. The model is a clock: it writes as long as it would, and the real dispatcher reads what it
writes. Tools, hub and page servers are real; the services behind them are stand-ins on loopback that take their time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from toolhub_agent.tool_calls import Dispatcher
from toolhub_agent.tool_calls.catalog import ToolCatalog
from toolhub_agent.tools import HubTools, ToolExecutor

from benchmarks.common.measure import interleaved, median, percentile, spread
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.overlap.services import SITE, SlowServices, open_services, servers
from benchmarks.overlap.tasks import (
    FIRST_TOKEN_S,
    INFO_CHARS,
    Search,
    published_task,
    sparse_task,
    writing_s,
)
from benchmarks.questions import QUESTIONS
from toolhub import Hub, HubTask, parse_config
from toolhub.model import SpeculationStatistics

# A model's text reaches an agent in pieces of some tokens.
_PIECE_CHARS = 32
MODES = {"none": "nothing early", "exact": "prefetch (the default)", "guess": "prefetch and guesses"}
TOOLS = {
    "read the page": ("reader", "convert_to_markdown", "uri"),
    "extract": ("extract", "scrape_and_extract_info", "url"),
}
HABITS: dict[str, Callable[[int, int], list[Search]]] = {"as published": published_task, "few visits": sparse_task}


@dataclass(frozen=True)
class OverlapScale:
    """scale: seconds of the measurement for one of the modelled task. searches: of each task.

    calls: of each round in which nothing is early. busy_s: at a service at its limit, for each mode and round.
    """

    scale: float
    tasks: int
    searches: int
    rounds: int
    calls: int
    busy_s: float


def run(scale: OverlapScale) -> Outcome:
    outcome = Outcome(notes=[_SCALED.format(times=round(1 / scale.scale)), *_NOTES])
    asyncio.run(_run(scale, outcome))
    return outcome


async def _run(scale: OverlapScale, outcome: Outcome) -> None:
    for habit in HABITS:
        for tool in TOOLS:
            await _tasks(scale, habit, tool, outcome)
    await _idle(scale, outcome)
    await _busy(scale, outcome)


# --- whole tasks ------------------------------------------------------------------------------------------------------


@dataclass
class _Played:
    """One round of one mode. tool_s: of the modelled tasks."""

    tool_s: list[float]
    task_s: list[float]
    sent_bytes: int
    needed_bytes: int
    early: int
    used: int
    visits: int


async def _tasks(scale: OverlapScale, habit: str, tool: str, outcome: Outcome) -> None:
    tasks = [HABITS[habit](number, scale.searches) for number in range(scale.tasks)]
    rounds: dict[str, list[_Played]] = {mode: [] for mode in MODES}
    async with open_services(scale.scale) as services:
        for _, mode in interleaved(list(MODES), scale.rounds - 1):
            rounds[mode].append(await _play_all(scale, services, mode, tool, tasks))
    rows = [_row(label, rounds[mode]) for mode, label in MODES.items()]
    for row in rows:
        row["times"] = ratio(row["tool_s"], rows[0]["tool_s"])
    title = f"{scale.tasks} tasks of {scale.searches} searches at once, {habit}; the tool: {tool}"
    outcome.tables.append(Table(title, _COLUMNS, rows))
    outcome.raw[title] = {mode: [vars(played) for played in found] for mode, found in rounds.items()}
    if (habit, tool) == ("as published", "read the page"):
        outcome.targets.append(Target("tool seconds, as published ÷ nothing early", rows[2]["times"], 0.65, "×"))
    outcome.targets.append(Target(f"bytes, {habit}, {tool} ÷ needed", rows[2]["bytes"], 1.5, "×"))


def _row(label: str, rounds: list[_Played]) -> Json:
    together = [sum(getattr(played, name) for played in rounds) for name in ("used", "visits", "early")]
    used, visits, early = together
    return {
        "way": label,
        "tool_s": median([second for played in rounds for second in played.tool_s]),
        "task_s": median([second for played in rounds for second in played.task_s]),
        "hits": 100 * used / visits if visits else None,
        "early": early / visits if visits else None,
        "bytes": ratio(sum(played.sent_bytes for played in rounds), sum(played.needed_bytes for played in rounds)),
    }


async def _play_all(
    scale: OverlapScale, services: SlowServices, mode: str, tool: str, tasks: list[list[Search]]
) -> _Played:
    """Play all tasks at once on a new hub."""
    services.know({search.query: search for task in tasks for search in task})
    async with Hub(_config(services, mode, tool)) as hub, AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(hub.task()) for _ in tasks]
        for task in opened:
            await task.tools()
        times = await asyncio.gather(
            *(_play(scale.scale, one, tool, task) for one, task in zip(opened, tasks, strict=True))
        )
        told = hub.statistics().speculation
    opened_pages = {page.path: page.size for task in tasks for search in task for page, _ in search.opened}
    return _Played(
        tool_s=[tool_s / scale.scale for tool_s, _ in times],
        task_s=[task_s / scale.scale for _, task_s in times],
        sent_bytes=services.sent_bytes,
        needed_bytes=sum(size // 22 * 22 + 22 for size in opened_pages.values()),
        early=told.prefetches + told.guesses,
        used=told.used,
        visits=sum(len(search.opened) for task in tasks for search in task),
    )


def _config(services: SlowServices, mode: str, tool: str) -> Any:
    server, name, argument = TOOLS[tool]
    then = {"server": server, "tool": name, "arguments": {argument: "organic.*.link"}}
    rule = {"after": {"server": "search", "tool": "google_search"}, "then": then}
    return parse_config(
        {
            "servers": servers(services, may_guess=mode == "guess"),
            "speculation": {"mode": mode, "rules": [rule] if mode == "guess" else []},
        },
        environ={},
    )


async def _play(scale: float, task: HubTask, tool: str, searches: list[Search]) -> tuple[float, float]:
    """Play a task. Return the seconds of its calls and of all of it."""
    tools = HubTools(task)
    catalog = ToolCatalog.of(await tools.get_all_tool_definitions())
    server, name, argument = TOOLS[tool]
    began, tool_s = time.perf_counter(), 0.0
    for search in searches:
        tool_s += await _turn(scale, tools, catalog, "search", "google_search", {"q": search.query}, search.wrote)
        for page, wrote in search.opened:
            arguments = {argument: SITE + page.path}
            if tool == "extract":
                arguments["info_to_extract"] = "x" * INFO_CHARS
            tool_s += await _turn(scale, tools, catalog, server, name, arguments, wrote)
    return tool_s, time.perf_counter() - began


async def _turn(
    scale: float, tools: HubTools, catalog: ToolCatalog, server: str, tool: str, arguments: Json, wrote: int
) -> float:
    """Write one call as a model does, and return the seconds from its end to its result."""
    executor = ToolExecutor(tools, timeout=60)
    written = "y" * wrote + (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n<arguments>\n"
        f"{json.dumps(arguments)}\n</arguments>\n</use_mcp_tool>"
    )
    async with Dispatcher(executor, catalog, prefetch=executor.prefetch) as turn:
        began = time.perf_counter() + FIRST_TOKEN_S * scale
        for end in range(0, len(written), _PIECE_CHARS):
            piece = written[end : end + _PIECE_CHARS]
            due = began + writing_s(end + len(piece)) * scale
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            turn.feed(piece)
        ended = time.perf_counter()
        await turn.finish()
        outcomes = [outcome async for outcome in turn.results()]
    assert len(outcomes) == 1 and not outcomes[0].is_error, outcomes
    return time.perf_counter() - ended


_COLUMNS = [
    Column("way", "mode"),
    Column("tool_s", "waiting for tools, s", 1),
    Column("times", "÷ nothing early", 2),
    Column("task_s", "a task, s", 1),
    Column("hits", "visits whose work had begun, %"),
    Column("early", "begun, per visit", 2),
    Column("bytes", "bytes ÷ needed", 2),
]


# --- nothing to begin -------------------------------------------------------------------------------------------------


# Rounds of both modes in turns. Each ratio is that of two neighbours, so that what changes slowly counts for both.
_IDLE_ROUNDS = 60


async def _idle(scale: OverlapScale, outcome: Outcome) -> None:
    """Compare the CPU of calls to a tool about which nothing is declared."""
    config = {"servers": {"clock": {"builtin": "clock"}}}
    cpu: dict[str, list[float]] = {"none": [], "exact": []}
    async with AsyncExitStack() as stack:
        tasks = {}
        for mode in cpu:
            hub = await stack.enter_async_context(
                Hub(parse_config(config | {"speculation": {"mode": mode}}, environ={}))
            )
            tasks[mode] = await stack.enter_async_context(hub.task())
        for number, mode in interleaved(list(cpu), _IDLE_ROUNDS):
            began = time.process_time()
            for _ in range(scale.calls):
                await tasks[mode].call("clock", "get_current_time", {"timezone": "UTC"})
            if number:
                cpu[mode].append((time.process_time() - began) / scale.calls * 1e6)
    middle = {mode: median(found) for mode, found in cpu.items()}
    rows = [{"way": MODES[mode], "cpu_us": value} for mode, value in middle.items()]
    columns = [Column("way", "mode"), Column("cpu_us", "CPU of a call, µs", 1)]
    outcome.tables.append(Table("Calls to a tool about which nothing is declared", columns, rows))
    times = median([exact / none for exact, none in zip(cpu["exact"], cpu["none"], strict=True)])
    outcome.targets.append(Target("CPU of a call, nothing to begin ÷ switched off", times, 1.01, "×"))
    outcome.raw["idle"] = {mode: spread(found) for mode, found in cpu.items()}


# --- a service at its limit -------------------------------------------------------------------------------------------

_PLACES = 8
_CALLERS = 12
_SEARCHERS = 3
# Of each page and each search, and on average between two calls of a caller: only queues make a difference.
_BUSY_S = 0.02
_PAUSE_S = 0.04


async def _busy(scale: OverlapScale, outcome: Outcome) -> None:
    """Measure calls to a page server that is at its limit of calls, while searches give rise to guesses."""
    seconds: dict[str, list[float]] = {"none": [], "guess": []}
    told: dict[str, Counter[str]] = {mode: Counter() for mode in seconds}
    async with open_services(1.0) as services:
        for number, mode in interleaved(list(seconds), 4 * scale.rounds):
            found, statistics = await _load(scale, services, mode)
            if number:
                seconds[mode] += found
                told[mode].update(asdict(statistics))
    rows: list[Json] = [
        {
            "way": MODES[mode],
            "calls": len(found),
            "p50_ms": percentile(found, 0.5) * 1e3,
            "p99_ms": percentile(found, 0.99) * 1e3,
            "begun": told[mode]["prefetches"],
            "preempted": told[mode]["preempted"],
        }
        for mode, found in seconds.items()
    ]
    columns = [
        Column("way", "mode"),
        Column("calls", "calls"),
        Column("p50_ms", "p50 ms", 1),
        Column("p99_ms", "p99 ms", 1),
        Column("begun", "guesses begun"),
        Column("preempted", "of them preempted"),
    ]
    title = f"A page server with {_PLACES} places for {_CALLERS} callers, and searches beside them"
    outcome.tables.append(Table(title, columns, rows))
    times = ratio(rows[1]["p99_ms"], rows[0]["p99_ms"])
    outcome.targets.append(Target("p99 of calls at the limit ÷ nothing early", times, 1.05, "×"))
    outcome.raw["busy"] = {mode: {"seconds": spread(found), **told[mode]} for mode, found in seconds.items()}


async def _load(scale: OverlapScale, services: SlowServices, mode: str) -> tuple[list[float], SpeculationStatistics]:
    tasks = [[_even(search) for search in sparse_task(number, 200)] for number in range(_CALLERS + _SEARCHERS)]
    services.know({search.query: search for task in tasks for search in task})
    config = _config(services, mode, "read the page")
    reader = config.servers["reader"].model_copy(update={"hub_concurrency": _PLACES})
    # No guess is ever right, and that stops none: the worst that speculation can do.
    unbounded = config.speculation.model_copy(update={"min_hit_rate": 0.0, "max_unused": 1e6})
    config = config.model_copy(update={"servers": {**config.servers, "reader": reader}, "speculation": unbounded})
    seconds: list[float] = []
    async with Hub(config) as hub, AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(hub.task()) for _ in tasks]
        await opened[0].tools()
        until = time.perf_counter() + scale.busy_s

        async def call(task: HubTask, searches: list[Search]) -> None:
            pick = random.Random(searches[0].query)
            for page in (page for search in searches for page in search.found):
                began = time.perf_counter()
                if began >= until:
                    return
                await task.call("reader", "convert_to_markdown", {"uri": SITE + page.path})
                seconds.append(time.perf_counter() - began)
                await asyncio.sleep(pick.expovariate(1 / _PAUSE_S))

        async def find(task: HubTask, searches: list[Search]) -> None:
            for search in searches:
                if time.perf_counter() >= until:
                    return
                await task.call("search", "google_search", {"q": search.query})
                await asyncio.sleep(_BUSY_S)

        acts = [call] * _CALLERS + [find] * _SEARCHERS
        await asyncio.gather(*(act(task, own) for act, task, own in zip(acts, opened, tasks, strict=True)))
        return seconds, hub.statistics().speculation


def _even(search: Search) -> Search:
    pages = tuple(replace(page, seconds=_BUSY_S, size=2000) for page in search.found)
    return replace(search, seconds=_BUSY_S, found=pages)


_SCALED = (
    "In the tables of tasks, what takes time in a service or in the model takes 1/{times} of it, and the seconds are "
    "those of the modelled task. Hub, page servers and dispatcher are real and not scaled, so their cost counts "
    "{times} times."
)
_NOTES = [
    "A page takes 1.2 s at the median and 6 s at the 95th percentile, a search 0.64 s and 1.35 s; a model that "
    "extracts takes 2 s (assumed). The model writes 40 tokens a second (assumed).",
    "`as published`: searches drawn from the two tasks that MiroFlow's repository publishes with their histories: "
    "three searches, six visits, pages of 45 to 135 thousand characters. `few visits`: assumed, shaped like "
    "BrowseComp; there the rule leaves its places out when they are seldom right.",
    "At the limit of a service every search gives rise to guesses, and none is ever right: the worst case.",
    "Bytes are those of pages; needed are those that a call asked for.",
]

BENCHMARK = Benchmark(
    "overlap",
    QUESTIONS["overlap"],
    run,
    full=OverlapScale(scale=0.05, tasks=10, searches=4, rounds=2, calls=250, busy_s=1.5),
    quick=OverlapScale(scale=0.02, tasks=4, searches=5, rounds=1, calls=20, busy_s=0.3),
)
