"""The benchmarks of many tasks with as little work as they can."""

from __future__ import annotations

from benchmarks.overload import benchmark as overload
from benchmarks.sweep import benchmark as sweep
from benchmarks.sweep.agents import Pace

TINY_OVERLOAD = overload.OverloadScale(
    tasks=2, rounds=2, window_s=0.8, loads=(2,), load_s=0.5, others_s=0.5, quiet_s=0.8, burst=20, variants=False
)
TINY_SWEEP = sweep.SweepScale(tasks=2, at_once=2, calls=8, pace=Pace(compressed=200), kills=1, short=1)
