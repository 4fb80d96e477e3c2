"""The reference servers from npm, started as users start them: npx, a shell, node."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_processes import HubFactory
from recovery_checks import keeps_three_tasks_apart, stands_a_task_and_a_kill

from testbed import third_party
from toolhub import HubTask, ServerSpec

pytestmark = pytest.mark.anyio


def npx_server(name: str, package_bin: str, *arguments: str) -> ServerSpec:
    command, *args = third_party.npx_command(package_bin)
    return ServerSpec(name=name, command=command, args=[*args, *arguments], stateful=False)


async def add(task: HubTask) -> None:
    result = await task.call("everything", "get-sum", {"a": 40, "b": 2})
    assert not result.is_error and "42" in result.text


async def test_server_everything_works_and_recovers(hubs: HubFactory) -> None:
    spec = npx_server("everything", "mcp-server-everything")
    await stands_a_task_and_a_kill(hubs, spec, {"echo", "get-sum"}, add)


async def test_server_filesystem_works_and_recovers(hubs: HubFactory, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "note.txt").write_text("grüße aus dem dateisystem")
    spec = npx_server("filesystem", "mcp-server-filesystem", str(allowed))

    async def read_a_file(task: HubTask) -> None:
        result = await task.call("filesystem", "read_text_file", {"path": str(allowed / "note.txt")})
        assert result.text == "grüße aus dem dateisystem"

    await stands_a_task_and_a_kill(hubs, spec, {"read_text_file", "write_file"}, read_a_file)


async def test_three_tasks_have_three_trees(hubs: HubFactory) -> None:
    await keeps_three_tasks_apart(hubs, npx_server("everything", "mcp-server-everything"), add)
