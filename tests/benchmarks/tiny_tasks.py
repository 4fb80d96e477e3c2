"""Whole tasks as small as they can be, on the tests' model server in the place of an engine."""

from __future__ import annotations

from benchmarks.llm.scripted_agent import Served
from benchmarks.model.costs import Calibration, EngineCosts
from benchmarks.model.play import Site
from benchmarks.model.samples import HeldOut, Measured
from benchmarks.task import benchmark as task
from benchmarks.task.modelled import TRIED, ExtrapolationSettings, SiteCase
from benchmarks.task.replay import Replay
from tests.benchmarks.stand_in_engine import open_large


async def known(_: Served) -> Measured:
    return Measured(Calibration(EngineCosts(), 0.01, 1), budget=512, held_out=[HeldOut("a mix", 2.0, 1.9)])


TINY_REPLAY = Replay(tasks=1, turns=3, scale=0.01, rounds=1, tools=0.001)
TINY_TASK = task.TaskScale(
    TINY_REPLAY,
    ExtrapolationSettings(
        [SiteCase("2 tasks on 1 engine", 2, Site(engines=1))],
        [SiteCase("2 tasks on a busy core", 2, Site(engines=1, cores=1))],
        [SiteCase("2 tasks otherwise", 2, Site(engines=1), TRIED.policies)],
        scale=0.001,
        workers=1,
    ),
    engine=task.TaskEngine("A stand-in", 32_000, open_large, known),
)
