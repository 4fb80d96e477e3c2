"""One run of a sweep: agents with many calls each to several servers, with pauses between them. A worker role.

All tools are read-only, so an agent repeats a call that was lost with its server, as an agent's loop would. Each call
has a text of its own, which the echoing servers must give back: an answer that went to the wrong caller is noticed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

import toolhub
from benchmarks.common.measure import spread
from benchmarks.common.result import Json
from benchmarks.common.worker_main import Act
from toolhub import Overloaded, ToolhubError

ATTEMPTS = 5
_PAUSE_S = 0.1
_TIMEOUT_S = 30.0
# Shares of the calls. `own` is a stdio server of each task, `shared` one for all; the others are in the hub's process.
MIX = {"clock": 0.15, "planner": 0.1, "search": 0.2, "shared": 0.35, "own": 0.2}


@dataclass(frozen=True)
class Pace:
    """Medians and spreads of log-normal times in real seconds, and the number that they are divided by."""

    compressed: float
    think_s: float = 26.0
    think_sigma: float = 1.0
    tool_s: float = 3.0
    tool_sigma: float = 1.0

    def think(self, source: random.Random) -> float:
        return source.lognormvariate(math.log(self.think_s), self.think_sigma) / self.compressed

    def tool(self, source: random.Random) -> float:
        return source.lognormvariate(math.log(self.tool_s), self.tool_sigma) / self.compressed

    @property
    def mean_s(self) -> float:
        """Compressed seconds per call: a pause, and the tool in the share of calls that take time."""
        think = self.think_s * math.exp(self.think_sigma**2 / 2)
        tool = self.tool_s * math.exp(self.tool_sigma**2 / 2)
        return (think + tool * (MIX["shared"] + MIX["search"])) / self.compressed


@dataclass
class SweepCounts:
    """The calls of one run. repeats: attempts after the first, by the error before. wrong: answers of another call."""

    made: int = 0
    answered: int = 0
    wrong: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    milliseconds: list[float] = field(default_factory=list)


@asynccontextmanager
async def open_agents() -> AsyncIterator[Act]:
    """Answer ``{"address", "run", "tasks", "at_once", "calls", "seed", "pace"}`` with a `SweepCounts` at the end."""

    async def act(request: Json) -> Json:
        tally = SweepCounts()
        numbers = itertools.count()
        async with toolhub.connect(request["address"]) as hub, anyio.create_task_group() as agents:
            for _ in range(request["at_once"]):
                agents.start_soon(_work, hub, request, numbers, tally)
        return {**vars(tally), "milliseconds": spread(tally.milliseconds)}

    yield act


async def _work(hub: Any, request: Json, numbers: Iterator[int], tally: SweepCounts) -> None:
    """Work on one task after another until none of the run is left."""
    pace = Pace(**request["pace"])
    while (number := next(numbers)) < request["tasks"]:
        name = f"{request['run']}{request['seed']}-{number}"
        source = random.Random(name)
        await anyio.sleep(pace.think(source))
        async with hub.task(name, run=request["run"]) as task:
            for call in range(request["calls"]):
                server = source.choices([*MIX], [*MIX.values()])[0]
                await _insist(task, server, f"{name}-{call}", pace.tool(source), tally)
                await anyio.sleep(pace.think(source))


async def _insist(task: Any, server: str, text: str, tool_s: float, tally: SweepCounts) -> None:
    """Make one call, with retries."""
    tool, arguments, echoes = _request(server, text, tool_s)
    tally.made += 1
    began, pause, reason = anyio.current_time(), _PAUSE_S, ""
    for _ in range(ATTEMPTS):
        if reason:
            tally.repeats[reason] += 1
            await anyio.sleep(pause)
            pause *= 2
        try:
            result = await task.call(server, tool, arguments, timeout=_TIMEOUT_S)
        except ToolhubError as problem:
            reason = type(problem).__name__
            if isinstance(problem, Overloaded) and problem.retry_after:
                pause = problem.retry_after
        else:
            tally.answered += 1
            tally.wrong += result.is_error or (echoes and result.text != text)
            tally.milliseconds.append((anyio.current_time() - began) * 1e3)
            return
    tally.lost[reason] += 1


def _request(server: str, text: str, tool_s: float) -> tuple[str, Json, bool]:
    """Return (tool, arguments, whether it gives the text back)."""
    if server == "shared":
        return "work", {"text": text, "work_s": tool_s}, True
    if server == "own":
        return "echo", {"text": text}, True
    if server == "search":
        return "search", {"q": text}, False
    return ("get_current_time", {}, False) if server == "clock" else ("list_todos", {}, False)
