"""One tool wait after a long prompt, with or without others' requests that push the prompt out of the KV cache.

A trial is a task of two turns: a prompt of some thousand tokens and a tool call, the wait, the turn after it. What
counts is the time to the first token of that second turn.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx2
from toolhub_agent.kv_hints.client import HintStatistics
from toolhub_agent.tools import ToolSource

from benchmarks.common.measure import interleaved
from benchmarks.common.result import Json
from benchmarks.llm.prompts import Writer, ask, open_writer
from benchmarks.llm.scripted_agent import (
    SERVER,
    TOOL,
    Meanwhile,
    Play,
    Served,
    Side,
    TimedTools,
    call_text,
    open_side,
    play,
)
from toolhub.config import HintSettings

# As many calls as a tool's own durations need to be believed.
_SEEN = 6
_PATIENCE_S = 300.0
LAST_WORD = "That is all."


@dataclass(frozen=True)
class Sizes:
    """Sizes of a trial. fillers: tokens of others' prompts, sent one after another while the tool runs.

    Together the fillers fill the cache. Each fits beside the pinned prompt, because otherwise the pin would yield.
    """

    prompt: int = 6600
    result: int = 400
    filler: int = 2000
    fillers: int = 6
    tool_s: float = 4.0
    pin_ttl_s: float = 30.0


@dataclass(frozen=True)
class HintVariant:
    """One variant of the wait. side: whose client. evicted: others send requests. first: more fields of turn 1."""

    name: str
    side: str
    evicted: bool
    first: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Others:
    """Requests of other users of the engine, each with a prompt of its own."""

    http: httpx2.AsyncClient
    served: Served
    writer: Writer
    sizes: Sizes

    async def __call__(self) -> None:
        for _ in range(self.sizes.fillers):
            text = self.writer.fresh(self.sizes.filler)
            await ask(self.http, self.served, [{"role": "user", "content": text}])


async def trial(side: Side, tools: ToolSource, variant: HintVariant, others: Others, task: str | None = None) -> Json:
    """Run one task and describe its second turn. is_off: whether the hints had switched themselves off."""
    writer, sizes = others.writer, others.sizes
    task = task or f"wait{uuid.uuid4().hex[:8]}"
    during: ToolSource = Meanwhile(tools, others) if variant.evicted else tools
    script = [call_text(f"a question {task}"), LAST_WORD]
    await play(side, Play(task, writer.fresh(sizes.prompt), script, during, variant.first))
    first, second = side.of_task(task)
    is_off = bool(side.hints.statistics().disabled)
    return {
        "way": variant.name,
        "ttft_s": second.ttft,
        "turn_s": second.seconds,
        "prompt": second.usage.prompt_tokens,
        "cached": second.usage.cached_tokens,
        "cold_s": first.ttft,
        "is_off": is_off,
    }


Trial = Callable[[HintVariant], Awaitable[Json]]


@dataclass
class WaitStats:
    """Every trial of every variant, and what the hints of each side did."""

    trials: dict[str, list[Json]] = field(default_factory=dict)
    statistics: dict[str, HintStatistics] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {"trials": self.trials, "statistics": {name: asdict(each) for name, each in self.statistics.items()}}


async def measure_waits(
    served: Served,
    variants: list[HintVariant],
    rounds: int,
    sizes: Sizes,
    modes: Mapping[str, HintSettings],
    more: Mapping[str, Trial] | None = None,
) -> WaitStats:
    """Take turns through the variants. modes: the hints of each side; more: sides that the caller has opened."""
    found = WaitStats()
    async with httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http:
        others = Others(http, served, await open_writer(http, served), sizes)
        tools = TimedTools(sizes.tool_s, others.writer.text(sizes.result))
        async with _open_sides(served, modes, sizes.tool_s) as sides:
            for number, variant in interleaved(variants, rounds - 1):
                if more is not None and variant.side in more:
                    told = await more[variant.side](variant)
                else:
                    told = await trial(sides[variant.side], tools, variant, others)
                # Each of these trials begins with a prompt that no cache has, so none is a warm-up.
                found.trials.setdefault(variant.name, []).append({"round": number, **told})
            found.statistics = {name: side.hints.statistics() for name, side in sides.items()}
    return found


@asynccontextmanager
async def _open_sides(
    served: Served, modes: Mapping[str, HintSettings], tool_s: float
) -> AsyncIterator[dict[str, Side]]:
    """Open all sides. Their hints know the tool's durations."""
    async with AsyncExitStack() as stack:
        sides = {name: await stack.enter_async_context(open_side(served, mode)) for name, mode in modes.items()}
        for side in sides.values():
            for _ in range(_SEEN):
                side.hints.durations.observe(SERVER, TOOL, tool_s)
        yield sides
