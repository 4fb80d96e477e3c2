"""Sandboxes in a hub: a task has its own, builtin servers run on them, and they end with the task."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from toolhub_sandbox import SandboxLimit, SandboxUnavailable

from toolhub import Hub, parse_config
from toolhub.extensions import find_sandboxes
from toolhub.spawn.supervisor import descendants
from toolhub.task import HubTask

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0
SERVERS = {"tool-python": {"builtin": "python"}}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def hub(tmp_path: Any) -> AsyncIterator[Hub]:
    """A hub with tool-python and two sandboxes per task; nothing of it is left afterwards."""
    before = set(descendants(os.getpid()))
    sandbox = {"max_per_task": 2, "profiles": {"bare": {"pool": 1}}}
    config = parse_config({"hub": {"state_dir": str(tmp_path)}, "servers": SERVERS, "sandbox": sandbox})
    with anyio.fail_after(PATIENCE_S):
        async with Hub(config) as running:
            yield running
    assert set(descendants(os.getpid())) <= before


async def ask(task: HubTask, tool: str, **arguments: Any) -> str:
    return (await task.call("tool-python", tool, arguments)).text


async def test_a_task_has_sandboxes_that_keep_their_state(hub: Hub) -> None:
    async with hub.task("t") as task:
        sandbox = await task.sandboxes.create()
        await sandbox.exec_code("x = 41")
        assert (await sandbox.exec_code("x + 1")).result == "42"


async def test_a_tasks_sandboxes_end_with_the_task(hub: Hub) -> None:
    async with hub.task("t") as task:
        sandbox = await task.sandboxes.create()
    assert not sandbox.is_alive
    await sandbox.wait_closed()
    with pytest.raises(SandboxUnavailable, match="'t' is closed"):
        await task.sandboxes.create()


async def test_a_tasks_sandboxes_end_when_its_client_falls_silent(hub: Hub) -> None:
    task = await hub.open_task("t", lease=0.2)
    sandbox = await task.sandboxes.create()
    await sandbox.wait_closed()
    assert [open_task.id for open_task in hub.tasks] == []


async def test_the_tool_and_the_library_use_the_same_sandboxes(hub: Hub) -> None:
    async with hub.task("t") as task:
        _, _, sandbox_id = (await ask(task, "create_sandbox")).partition("sandbox_id: ")
        await ask(task, "run_python_code", code_block="x = 'kept'", sandbox_id=sandbox_id)
        assert (await task.sandboxes.get(sandbox_id).exec_code("x")).result == "'kept'"
        assert "stdout='kept" in await ask(task, "run_command", command="echo kept", sandbox_id=sandbox_id)


async def test_another_task_cannot_use_a_sandbox_by_its_id(hub: Hub) -> None:
    async with hub.task("a") as mine, hub.task("b") as other:
        sandbox = await mine.sandboxes.create()
        answer = await ask(other, "run_command", command="id", sandbox_id=sandbox.id)
        assert answer.startswith(f"[ERROR]: Failed to connect to sandbox {sandbox.id}")


async def test_the_limit_per_task_is_named_and_bounds_only_that_task(hub: Hub) -> None:
    async with hub.task("a") as greedy, hub.task("b") as other:
        await greedy.sandboxes.create()
        await greedy.sandboxes.create()
        with pytest.raises(SandboxLimit, match="sandbox.max_per_task"):
            await greedy.sandboxes.create()
        assert "sandbox.max_per_task" in await ask(greedy, "create_sandbox")
        await other.sandboxes.create()


async def test_the_hub_counts_its_sandboxes(hub: Hub) -> None:
    async with hub.task("t") as task:
        await task.sandboxes.create()
        counts = hub.statistics().sandboxes
        assert counts is not None and (counts.live, counts.created) == (1, 1)
    counts = hub.statistics().sandboxes
    assert counts is not None and counts.live == 0


async def test_a_server_that_all_tasks_share_has_sandboxes_of_the_hub(tmp_path: Any) -> None:
    servers = {"tool-python": SERVERS["tool-python"] | {"share": "hub"}}
    with anyio.fail_after(PATIENCE_S):
        async with Hub(parse_config({"hub": {"state_dir": str(tmp_path)}, "servers": servers})) as hub:
            async with hub.task("a") as task:
                _, _, sandbox_id = (await ask(task, "create_sandbox")).partition("sandbox_id: ")
            async with hub.task("b") as task:
                assert "stdout='hi" in await ask(task, "run_command", command="echo hi", sandbox_id=sandbox_id)


async def test_sandbox_starts_wait_for_the_hubs_start_limit(tmp_path: Any) -> None:
    config = parse_config(
        {"hub": {"state_dir": str(tmp_path), "max_starts": 1}, "sandbox": {"profiles": {"bare": {"pool": 0}}}}
    )
    with anyio.fail_after(PATIENCE_S):
        async with Hub(config) as hub, hub.task("t") as task:
            await task.sandboxes.create()
            async with hub._shared.starts.place(hub._ready()):
                with anyio.move_on_after(0.1) as waited:
                    await task.sandboxes.create()
                assert waited.cancelled_caught
            await task.sandboxes.create()


def test_the_installed_sandboxes_are_found_by_their_entry_point() -> None:
    opener = find_sandboxes()
    assert opener is not None and opener.__module__ == "toolhub_sandbox.sandboxes"
