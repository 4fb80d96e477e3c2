"""What the benchmark of KV hints measures with, and what it found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from benchmarks.common.measure import median
from benchmarks.common.result import Json
from benchmarks.kv.history import Talk
from benchmarks.kv.mix import TaskMix, Throughput
from benchmarks.kv.waits import Sizes, WaitStats
from benchmarks.llm.scripted_agent import Served

REFERENCE, NOTHING, AHEAD, PIN, LLM_PROXY = "reference", "nothing", "ahead", "pin", "proxy"


@dataclass(frozen=True)
class KvEngines:
    """Opens an engine for each part. small_cache: has `cache_tokens`, which the fillers fill. pinning: the same with
    toolhub's scheduler; None leaves that part out. about: the engine and its model, as the first words of a sentence.
    """

    about: str
    cache_tokens: int
    small_cache: Callable[[], AbstractAsyncContextManager[Served]]
    pinning: Callable[[], AbstractAsyncContextManager[Served]] | None
    small_blocks: Callable[[], AbstractAsyncContextManager[Served]]


@dataclass(frozen=True)
class KvScale:
    """How much is measured. rounds: of each variant. calm_rounds: of the waits without eviction.

    Hints switch themselves off after eight waits or more. A wait whose prefill-ahead failed does not count.
    """

    rounds: int
    calm_rounds: int
    mix_rounds: int
    keep_rounds: int
    sizes: Sizes = field(default_factory=Sizes)
    calm: Sizes = field(default_factory=lambda: Sizes(prompt=3300, tool_s=1.5))
    mix: TaskMix = field(default_factory=TaskMix)
    talk: Talk = field(default_factory=Talk)
    engines: KvEngines | None = None
    """None: vLLM on this machine's CPU."""


@dataclass
class KvResults:
    """The results. calm: waits without eviction. pinned: waits on an engine with toolhub's scheduler.

    proxy_missing: why the LLM proxy was not measured.
    """

    waits: WaitStats
    calm: WaitStats
    mix: Throughput
    keep: dict[str, list[Json]]
    pinned: WaitStats | None = None
    proxy_missing: str | None = None

    def median(self, part: str, variant: str, key: str) -> float | None:
        waits: WaitStats | None = getattr(self, part)
        trials = waits.trials.get(variant, []) if waits is not None else []
        return median([each[key] for each in trials]) if trials else None
