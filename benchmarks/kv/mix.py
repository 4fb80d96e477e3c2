"""What hints cost other users: many tasks at once on a cache that is too small, with hints and without."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field

import anyio
import httpx2
from toolhub_agent.kv_hints.client import HintStatistics

from benchmarks.common.measure import interleaved
from benchmarks.common.result import Json
from benchmarks.llm.prompts import Writer, open_writer
from benchmarks.llm.scripted_agent import Play, Served, Side, TimedTools, call_text, open_side, play
from toolhub.config import HintSettings

_PATIENCE_S = 300.0
_LAST_WORD = "That is all."


@dataclass(frozen=True)
class TaskMix:
    """Tasks at once. Each has one of `prompts` (tokens) and of `tools_s` (seconds), the same in every round."""

    tasks: int = 8
    turns: int = 3
    prompts: Sequence[int] = (1200, 2000, 3000)
    tools_s: Sequence[float] = (0.5, 1.0, 2.0, 4.0)
    result: int = 300


@dataclass
class Throughput:
    """rounds: for each variant, ``{"wall_s", "prompt", "cached", "completion", "tokens_per_s"}`` of each round."""

    rounds: dict[str, list[Json]] = field(default_factory=dict)
    statistics: HintStatistics | None = None

    def to_json(self) -> Json:
        return {"rounds": self.rounds, "statistics": asdict(self.statistics) if self.statistics else None}


async def measure_mix(served: Served, mix: TaskMix, rounds: int) -> Throughput:
    """Run the same tasks in turns with the default hints and with none. What the hints cost to learn is counted."""
    found = Throughput()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False))
        writer = await open_writer(http, served)
        sides = {
            "off": await stack.enter_async_context(open_side(served)),
            "on": await stack.enter_async_context(open_side(served, HintSettings())),
        }
        for _, variant in interleaved(tuple(sides), rounds - 1):
            found.rounds.setdefault(variant, []).append(await _run(sides[variant], mix, writer))
        found.statistics = sides["on"].hints.statistics()
    return found


async def _run(side: Side, mix: TaskMix, writer: Writer) -> Json:
    pick = random.Random(0)
    pieces = [_piece(mix, pick, writer) for _ in range(mix.tasks)]
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        for piece in pieces:
            group.start_soon(play, side, piece)
    wall = anyio.current_time() - began
    usages = [turn.usage for piece in pieces for turn in side.of_task(piece.task)]
    prompt, completion = sum(each.prompt_tokens for each in usages), sum(each.completion_tokens for each in usages)
    return {
        "wall_s": wall,
        "prompt": prompt,
        "cached": sum(each.cached_tokens or 0 for each in usages),
        "completion": completion,
        "tokens_per_s": (prompt + completion) / wall,
    }


def _piece(mix: TaskMix, pick: random.Random, writer: Writer) -> Play:
    task = f"mix{uuid.uuid4().hex[:8]}"
    calls = [call_text(f"question {number} of {task}") for number in range(mix.turns - 1)]
    tools = TimedTools(pick.choice(mix.tools_s), writer.text(mix.result))
    return Play(task, writer.fresh(pick.choice(mix.prompts)), [*calls, _LAST_WORD], tools)
