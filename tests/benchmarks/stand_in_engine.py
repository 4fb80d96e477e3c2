"""The tests' model server in the place of an engine: it says what it is told to, as fast as it can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llm_stand_in.answers import Answer, said
from llm_stand_in.model_server import Seen, open_model_server

from benchmarks.decode import benchmark as decode
from benchmarks.kv import results as kv_results
from benchmarks.kv.history import Talk
from benchmarks.kv.mix import TaskMix
from benchmarks.kv.waits import Sizes
from benchmarks.llm.scripted_agent import Served
from benchmarks.loop import benchmark as loop
from benchmarks.loop.dispatch import WrittenTurn
from benchmarks.loop.long_task import LongTask
from benchmarks.loop.many_agents import ManyAgents

# Of 16 tokens. One conversation, most of it the description of the tools, or the fillers.
CACHE_BLOCKS = 120


def prescribed(seen: Seen) -> Answer:
    """What structured outputs leave as the only answer, in two pieces; else one word."""
    choices = (seen.body.get("structured_outputs") or {}).get("choice")
    if not choices or seen.body["max_tokens"] == 1:
        return said("ok")
    (text,) = choices
    half = len(text) // 2
    return said(text[:half], text[half:])


@asynccontextmanager
async def open_small() -> AsyncIterator[Served]:
    """A cache that a few prompts fill."""
    with open_model_server(cache_blocks=CACHE_BLOCKS) as server:
        server.usual = prescribed
        yield Served(server.url)


@asynccontextmanager
async def open_speculating(has_recipe: bool) -> AsyncIterator[Served]:
    """It drafts ten tokens an answer, and half of them are accepted."""
    with open_model_server() as server:
        if has_recipe:
            server.load.drafted = 0

        def answer(seen: Seen) -> Answer:
            if has_recipe:
                server.load.drafted = (server.load.drafted or 0) + 10
                server.load.accepted += 5
            return prescribed(seen)

        server.usual = answer
        yield Served(server.url)


@asynccontextmanager
async def open_large() -> AsyncIterator[Served]:
    with open_model_server() as server:
        server.usual = prescribed
        yield Served(server.url)


_SIZES = Sizes(prompt=100, result=20, filler=400, fillers=5, tool_s=0.05)
TINY_KV = kv_results.KvScale(
    rounds=1,
    calm_rounds=1,
    mix_rounds=1,
    keep_rounds=1,
    sizes=_SIZES,
    calm=_SIZES,
    mix=TaskMix(tasks=2, turns=2, prompts=(50,), tools_s=(0.01,), result=10),
    talk=Talk(turns=14, system=50, result=60),
    engines=kv_results.KvEngines("A stand-in", CACHE_BLOCKS * 16, open_small, open_small, open_large),
)
TINY_LOOP = loop.LoopScale(
    rounds=1,
    agents_rounds=1,
    task_rounds=1,
    turns=(WrittenTurn("2 calls", (0.01, 0.01)),),
    agents=(ManyAgents("3 agents", 3, 2, 0.01, 2, shared=50),),
    task=LongTask(turns=4, system=20, answer_s=0.01),
    engines=loop.LoopEngines("A stand-in", open_large, open_large),
)
TINY_DECODE = decode.DecodeScale(
    levels={1: 2, 2: 4}, words=20, engines=decode.DecodeEngines("A stand-in", open_speculating)
)
