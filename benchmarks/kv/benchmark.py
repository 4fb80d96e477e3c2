"""What does the model server's prefix cache give an agent, with hints and without? On a real engine.

Four parts: a tool wait with an emptied cache (hints from the agent, pins, hints from the LLM proxy), the same with
nothing evicted, the throughput of many tasks, and a long conversation under each policy of leaving out old results.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from benchmarks.common.result import ROOT, Benchmark, Outcome
from benchmarks.kv import llm_proxy
from benchmarks.kv.history import Talk, measure_keep
from benchmarks.kv.mix import TaskMix, measure_mix
from benchmarks.kv.results import AHEAD, LLM_PROXY, NOTHING, PIN, REFERENCE, KvEngines, KvResults, KvScale
from benchmarks.kv.tables import outcome_of
from benchmarks.kv.waits import HintVariant, WaitStats, measure_waits
from benchmarks.llm.scripted_agent import Served
from benchmarks.questions import QUESTIONS
from testbed.engine.install import installed
from testbed.engine.server import BLOCK_SIZE, EngineOptions, open_engine
from toolhub.config import HintSettings

OFF = HintSettings(mode="off")
# Hints are never switched off, so every wait shows what a prefill-ahead does.
ON = HintSettings(mode="on")

# --- engines ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _cpu_engine(**options: Any) -> AsyncIterator[Served]:
    async with open_engine(EngineOptions(model="small", **options)) as engine:
        yield Served(engine.openai_url, engine.name)


def cpu_engines() -> KvEngines:
    """Return the engines: 97 blocks of 128 tokens hold one conversation or two fillers. Raises EngineSetupError."""
    installed()
    pins = {"scheduler_cls": "toolhub_agent.vllm_plugin.PinScheduler", "python_path": [ROOT / "agent_loop"]}
    return KvEngines(
        "A real vLLM on the CPU with a model of random weights (6 M parameters)",
        96 * BLOCK_SIZE,
        functools.partial(_cpu_engine, blocks=97),
        # One conversation is more than half of this cache, the share that pins may take of one by default.
        functools.partial(_cpu_engine, blocks=97, environment={"TOOLHUB_PIN_MAX_SHARE": "0.7"}, **pins),
        functools.partial(_cpu_engine, block_size=32),
    )


# --- measuring ----------------------------------------------------------------------------------------------------


def run(scale: KvScale) -> Outcome:
    engines = scale.engines or cpu_engines()
    return outcome_of(anyio.run(_measure, scale, engines), scale, engines)


async def _measure(scale: KvScale, engines: KvEngines) -> KvResults:
    proxy_missing = llm_proxy.missing()
    variants = [HintVariant(REFERENCE, "off", False), HintVariant(NOTHING, "off", True), HintVariant(AHEAD, "on", True)]
    async with engines.small_cache() as served:
        if proxy_missing is None:
            async with llm_proxy.open_frontend(served, scale.sizes) as proxy:
                both = [*variants, HintVariant(LLM_PROXY, "proxy", True)]
                sides: Mapping[str, HintSettings] = {"off": OFF, "on": ON}
                waits = await measure_waits(served, both, scale.rounds, scale.sizes, sides, {"proxy": proxy})
        else:
            waits = await measure_waits(served, variants, scale.rounds, scale.sizes, {"off": OFF, "on": ON})
        quiet = [HintVariant("off", "off", False), HintVariant("auto", "auto", False)]
        modes = {"off": OFF, "auto": HintSettings()}
        calm = await measure_waits(served, quiet, scale.calm_rounds, scale.calm, modes)
        mix = await measure_mix(served, scale.mix, scale.mix_rounds)
    pinned = await _pinned(scale, engines)
    async with engines.small_blocks() as served:
        keep = await measure_keep(served, scale.talk, scale.keep_rounds)
    return KvResults(waits, calm, mix, keep, pinned, proxy_missing)


async def _pinned(scale: KvScale, engines: KvEngines) -> WaitStats | None:
    if engines.pinning is None:
        return None
    wish = {"pin_ttl_s": scale.sizes.pin_ttl_s, "session_id": "one at a time"}
    variants = [
        HintVariant(REFERENCE, "off", False),
        # The one session's next pin takes the place of the last one's.
        HintVariant(PIN, "off", True, {"vllm_xargs": wish}),
    ]
    async with engines.pinning() as served:
        return await measure_waits(served, variants, scale.rounds, scale.sizes, {"off": OFF})


BENCHMARK = Benchmark(
    "kv",
    QUESTIONS["kv"],
    run,
    full=KvScale(rounds=3, calm_rounds=9, mix_rounds=3, keep_rounds=1),
    quick=KvScale(
        rounds=1,
        calm_rounds=2,
        mix_rounds=1,
        keep_rounds=1,
        mix=TaskMix(tasks=4, turns=2),
        talk=Talk(turns=12),
    ),
)
