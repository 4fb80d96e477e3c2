"""A sweep whose number of tasks is left to admission."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from llm_stand_in.answers import Answer, said
from llm_stand_in.model_server import ModelServer, Seen
from toolhub_agent.sweep import AUTO_CONCURRENCY, MAX_UNANSWERED, ResultFile, Sweep, SweepPlan, open_session
from toolhub_agent.types import Task

from toolhub import parse_config

pytestmark = pytest.mark.anyio
TASKS = 20


def hold_agents(seen: Seen) -> Answer:
    return said("w") if seen.body.get("max_tokens") == 1 else Answer(pieces=("\\boxed{x}",), hold=True)


@pytest.mark.parametrize(("enabled", "begun"), [(True, MAX_UNANSWERED), (False, TASKS)], ids=["admission", "without"])
async def test_with_admission_a_sweep_begins_tasks_as_their_first_answers_come(
    server: ModelServer, tmp_path: Path, enabled: bool, begun: int
):
    server.usual = hold_agents
    config = parse_config(
        {
            "hub": {"state_dir": str(tmp_path / "state")},
            "servers": {"clock": {"builtin": "clock", "share": "hub"}},
            "llm": {"endpoints": [server.url], "model": "m", "admission": {"enabled": enabled}},
        },
        environ={},
    )
    assert config.llm is not None
    plan = SweepPlan(tuple(Task(f"t{number}", "Who?") for number in range(TASKS)), tmp_path, 1, AUTO_CONCURRENCY)
    results = ResultFile(tmp_path)
    with anyio.fail_after(90):
        async with open_session(config, config.llm) as session, anyio.create_task_group() as tasks:
            sweep = Sweep(session, plan, results)
            tasks.start_soon(sweep.run, lambda _row: None)
            await server.wait_until(lambda each: each.running == begun)
            assert sweep.started == begun
            server.release()
    results.close()
    assert [row.status for row in results.final()] == ["success"] * TASKS
