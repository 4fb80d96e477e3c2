"""tool-python inside a hub: each task has sandboxes of its own, which end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from toolhub import Hub, HubTask, parse_config

pytestmark = pytest.mark.anyio

CONFIG = parse_config(
    {
        "servers": {
            "tool-python": {"builtin": "python", "options": {"profile": "tiny"}},
            "stateless_python": {"builtin": "stateless_python"},
        },
        "sandbox": {"max_sandboxes": 2, "profiles": {"tiny": {"pool": 0}, "bare": {"pool": 0}}},
    }
)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    with anyio.fail_after(60):
        async with Hub(CONFIG) as hub:
            yield hub


async def told(task: HubTask, tool: str, *, server: str = "tool-python", **arguments: Any) -> str:
    result = await task.call(server, tool, arguments)
    assert not result.is_error
    return str(result.text)


async def created(task: HubTask) -> str:
    return (await told(task, "create_sandbox")).removeprefix("Sandbox created with sandbox_id: ")


async def test_tasks_cannot_use_each_others_sandboxes(hub: Hub) -> None:
    async with hub.task("one") as one, hub.task("two") as two:
        sandbox_id = await created(one)
        assert "stdout='mine\\n'" in await told(one, "run_command", command="echo mine", sandbox_id=sandbox_id)
        assert (await told(two, "run_command", command="true", sandbox_id=sandbox_id)).startswith(
            f"[ERROR]: Failed to connect to sandbox {sandbox_id}."
        )


async def test_the_sandboxes_of_a_task_end_with_it(hub: Hub) -> None:
    """There may be two at all: the second task gets its two only if those of the first are gone."""
    for name in ("one", "two"):
        async with hub.task(name) as task:
            first, second = await created(task), await created(task)
            assert first != second
            assert "max_sandboxes" in await told(task, "create_sandbox")


async def test_both_servers_share_what_a_task_has(hub: Hub) -> None:
    async with hub.task("one") as task:
        printed = await told(task, "python", server="stateless_python", code="print(1)")
        assert printed == "Execution(Results: [], Logs: Logs(stdout: ['1\\n'], stderr: []), Error: None)"
        await created(task)
        await created(task)
        assert "Exception type: SandboxLimit" in await told(task, "python", server="stateless_python", code="1")
