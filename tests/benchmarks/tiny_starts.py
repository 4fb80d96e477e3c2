"""The benchmarks of starts and of memory with as little work as they can."""

from __future__ import annotations

from benchmarks.common.agent_startup import Builtin
from benchmarks.common.server_commands import fixture_echo, lean_echo
from benchmarks.density import benchmark as density
from benchmarks.storm import benchmark as storm

CLOCK = Builtin("clock", {}, {}, is_shared=True)
TINY_STORM = storm.StormScale(tasks=2, deadline_s=20, servers=(fixture_echo(), lean_echo()))
TINY_DENSITY = density.DensityScale(
    looks=(1, 2),
    forked=(1, 2),
    spawned=(1, 2),
    open_tasks=3,
    sessions=2,
    budget_s=20,
    servers=(CLOCK,),
    server=fixture_echo(),
)
