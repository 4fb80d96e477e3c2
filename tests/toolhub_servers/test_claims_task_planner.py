"""The file of a plan: whole whatever happens to the writer, and each task's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from toolhub_servers.task_planner import Plan

from toolhub import Hub, parse_config
from toolhub.errors import SessionLost

# Adds a todo, and dies by SIGKILL after the new plan is written and before it takes the place of the old one.
DYING = """
import os, signal, sys
from pathlib import Path
from toolhub_servers.task_planner import Plan
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
Plan(Path(sys.argv[1]), "t").add(["never"])
"""


def test_a_writer_that_is_killed_leaves_the_plan_as_it_was(tmp_path: Path) -> None:
    plan = Plan(tmp_path, "t")
    plan.add(["first"])
    before = plan.file.read_bytes()
    died = subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert plan.file.read_bytes() == before and len(json.loads(before)) == 1
    assert "Total: 2" in plan.add(["second"])


def test_long_ids_of_tasks_that_begin_alike_are_still_two_tasks(tmp_path: Path) -> None:
    alike = "benchmark/" + "任务" * 20
    Plan(tmp_path, f"{alike}-1").add(["of the first"])
    assert "Total: 0" in Plan(tmp_path, f"{alike}-2").show()


@pytest.mark.anyio
async def test_a_plan_survives_the_death_of_its_server_process_and_of_the_hub(tmp_path: Path) -> None:
    entry = {
        "command": sys.executable,
        "args": ["-m", "toolhub_servers", "task_planner", "--data-dir", str(tmp_path / "plans")],
        "env": {"TASK_ID": "${task.id}"},
    }
    config = parse_config({"hub": {"state_dir": str(tmp_path)}, "servers": {"task_planner": entry}})
    with anyio.fail_after(60):
        async with Hub(config) as hub, hub.task("t") as task:
            await task.call("task_planner", "add_todo", {"titles": ["read on"]})
            (slot,) = hub.statistics().tasks[0].slots
            assert slot.pid is not None
            os.kill(slot.pid, signal.SIGKILL)
            try:
                after = await task.call("task_planner", "list_todos")
            except SessionLost:  # told once that the server died; a plan is no state of the process
                after = await task.call("task_planner", "list_todos")
            assert "- [ ] read on" in after.text
        async with Hub(config) as hub, hub.task("t") as task:
            assert "- [ ] read on" in (await task.call("task_planner", "list_todos")).text
