"""Samples of a real engine, and how well the costs found from them predict conversations that were held out."""

from __future__ import annotations

from dataclasses import astuple

import anyio
import pytest

from benchmarks.llm.scripted_agent import Served
from benchmarks.model.samples import QUICK_PLAN, measure_costs
from testbed.engine.server import EngineServer

pytestmark = pytest.mark.anyio

PATIENCE_S = 240
# Far above what was seen, for machines with other things to do: a model that is wrong is off by factors.
LIMIT = 0.6


async def test_costs_of_a_real_engine_predict_what_was_held_out(engine: EngineServer) -> None:
    with anyio.fail_after(PATIENCE_S):
        measured = await measure_costs(Served(engine.openai_url, engine.name), QUICK_PLAN)
    found = [(each.prefill, each.cached, each.decode, each.batch) for each in measured.samples]
    assert found == [astuple(shape) for shape in QUICK_PLAN.shapes]
    assert min(astuple(measured.calibration.costs)) >= 0
    assert 0 < measured.calibration.error < LIMIT
    assert 0 < measured.held_out_error < LIMIT
