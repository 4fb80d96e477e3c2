"""A hub does without a launcher once it knows what it runs, and goes back to it when that does not come up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from npx_uvx_packages import launcher_of, npm_package, npx_of
from real_processes import HubFactory, below, pid_of

from toolhub import ServerSpec, StartError
from toolhub.spawn.launchers.resolver import Command

pytestmark = pytest.mark.anyio


def spec_of(command: Command, **fields: Any) -> ServerSpec:
    first, *args = command.argv
    given: dict[str, Any] = {"name": "looks", "command": first, "args": args, "env": command.env, "cwd": command.cwd}
    return ServerSpec(**given | fields)


async def processes(hubs: HubFactory, spec: ServerSpec) -> int:
    """Start a server in a hub of its own; the number of processes that it has."""
    async with hubs.task(spec, within=60) as task:
        assert await task.warm() == {}
        return 1 + len(below(pid_of(task, spec.name)))


async def test_the_second_start_of_an_npx_server_is_one_process(hubs: HubFactory, tmp_path: Path) -> None:
    spec = spec_of(npx_of(npm_package(tmp_path / "looks"), "x"))
    assert await processes(hubs, spec) == 3
    assert await processes(hubs, spec) == 1


async def test_tasks_of_one_hub_learn_from_each_other(hubs: HubFactory, tmp_path: Path) -> None:
    spec = spec_of(launcher_of(tmp_path))
    with anyio.fail_after(20):
        async with hubs(spec) as hub:
            counts = []
            for _ in range(2):
                async with hub.task() as task:
                    assert await task.warm() == {}
                    counts.append(1 + len(below(pid_of(task, "looks"))))
    assert counts == [2, 1]


async def test_a_server_that_needs_its_launcher_is_started_behind_it(hubs: HubFactory, tmp_path: Path) -> None:
    spec = spec_of(launcher_of(tmp_path, "LAUNCHED=1 PYTHON -S SCRIPT x; exit"))
    script = tmp_path / "looks.py"
    script.write_text("import os\nos.environ['LAUNCHED']\n" + script.read_text())
    assert [await processes(hubs, spec) for _ in range(4)] == [2, 2, 2, 2]


async def test_a_server_that_cannot_start_at_all_says_so_as_before(hubs: HubFactory, tmp_path: Path) -> None:
    spec = spec_of(launcher_of(tmp_path))
    assert await processes(hubs, spec) == 2
    broken = spec.model_copy(update={"env": spec.env | {"PYTHONHOME": "/nowhere"}})
    async with hubs.task(broken) as task:
        error = (await task.warm())["looks"]
        assert isinstance(error, StartError) and "exited with 1" in str(error)


async def test_what_hangs_costs_no_more_than_the_start_timeout_and_is_left_to_its_launcher(
    hubs: HubFactory, tmp_path: Path
) -> None:
    spec = spec_of(launcher_of(tmp_path, "LAUNCHED=1 PYTHON -S SCRIPT x; exit"), start_timeout_s=3)
    script = tmp_path / "looks.py"
    script.write_text("import os, time\n'LAUNCHED' in os.environ or time.sleep(100)\n" + script.read_text())
    assert await processes(hubs, spec) == 2
    async with hubs.task(spec) as task:
        assert "did not answer the handshake" in str((await task.warm())["looks"])
    assert await processes(hubs, spec) == 2
