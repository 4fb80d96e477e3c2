"""Agents that are admitted, as small as they can be, on the tests' model server in the place of an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llm_stand_in.model_server import open_model_server

from benchmarks.admission import benchmark as admission
from benchmarks.admission.heat_map import HeatMapSettings
from benchmarks.admission.programs import Workload
from benchmarks.llm.scripted_agent import Served
from tests.benchmarks.stand_in_engine import prescribed
from tests.benchmarks.tiny_tasks import known


@asynccontextmanager
async def open_limited(blocks: int) -> AsyncIterator[Served]:
    with open_model_server(cache_blocks=blocks) as server:
        server.usual = prescribed
        server.load.blocks = blocks + 1
        server.pages["/reset_prefix_cache"] = {}
        yield Served(server.url)


WORKLOAD = Workload(0.01, agents=3, turns=2, shared=100, question=20, result=60, answer=9)
TINY_ADMISSION = admission.AdmissionScale(
    [
        admission.AdmissionRow("A small cache", 20, WORKLOAD, fixed=(1,)),
        admission.AdmissionRow("Everything fits", 200, WORKLOAD, fits=True),
    ],
    calibration_blocks=200,
    sweep=(1, 2),
    heat_map=HeatMapSettings((2_000, 9_000), (0.1,), (1, 2), WORKLOAD),
    engine=admission.AdmissionEngine("A stand-in", 16, open_limited, known),
)
