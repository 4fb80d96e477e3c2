"""All benchmarks, in the order of `questions`."""

from __future__ import annotations

from typing import Any

from benchmarks.common.result import Benchmark
from benchmarks.density import benchmark as density
from benchmarks.idle import benchmark as idle
from benchmarks.init import benchmark as init
from benchmarks.kv import benchmark as kv
from benchmarks.loop import benchmark as loop
from benchmarks.overhead import benchmark as overhead
from benchmarks.overload import benchmark as overload
from benchmarks.recover import benchmark as recover
from benchmarks.sandbox import benchmark as sandbox
from benchmarks.servers import benchmark as servers
from benchmarks.soak import question as soak
from benchmarks.storm import benchmark as storm
from benchmarks.sweep import benchmark as sweep
from benchmarks.task import benchmark as task
from benchmarks.throughput import benchmark as throughput

_MODULES = (
    overhead,
    throughput,
    init,
    storm,
    density,
    overload,
    sweep,
    soak,
    recover,
    idle,
    sandbox,
    servers,
    kv,
    loop,
    task,
)
BENCHMARKS: dict[str, Benchmark[Any]] = {module.BENCHMARK.name: module.BENCHMARK for module in _MODULES}
