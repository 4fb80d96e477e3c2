"""The reference servers in Python, on both majors of the SDK."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from real_processes import HubFactory
from recovery_checks import keeps_three_tasks_apart, stands_a_task_and_a_kill

from testbed import third_party
from toolhub import HubTask, ServerSpec

pytestmark = pytest.mark.anyio

both_majors = pytest.mark.parametrize(
    "python", [third_party.mcp2_python, third_party.mcp1_python], ids=["mcp2", "mcp1"]
)
PythonOf = Callable[[], Path]


def time_server(python: PythonOf, **fields: Any) -> ServerSpec:
    args = ["-m", "mcp_server_time", "--local-timezone", "UTC"]
    given: dict[str, Any] = {"name": "time", "command": str(python()), "args": args, "stateful": False}
    return ServerSpec(**given | fields)


async def ask_the_time(task: HubTask) -> None:
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    result = await task.call("time", "convert_time", noon)
    assert json.loads(result.text)["target"]["datetime"].endswith("21:00:00+09:00")


@both_majors
async def test_the_time_server_works_and_recovers(python: PythonOf, hubs: HubFactory) -> None:
    await stands_a_task_and_a_kill(hubs, time_server(python), {"get_current_time", "convert_time"}, ask_the_time)


@both_majors
async def test_the_git_server_works_and_recovers(python: PythonOf, hubs: HubFactory, repository: Path) -> None:
    args = ["-m", "mcp_server_git", "--repository", str(repository)]
    spec = ServerSpec(name="git", command=str(python()), args=args, stateful=False)

    async def read_the_log(task: HubTask) -> None:
        result = await task.call("git", "git_log", {"repo_path": str(repository)})
        assert not result.is_error and "the first commit" in result.text

    await stands_a_task_and_a_kill(hubs, spec, {"git_status", "git_log"}, read_the_log)


@both_majors
async def test_three_tasks_have_three_processes(python: PythonOf, hubs: HubFactory) -> None:
    await keeps_three_tasks_apart(hubs, time_server(python), ask_the_time)


@pytest.mark.parametrize(("share", "processes"), [("hub", 1), ("task", 2)])
async def test_share_decides_how_many_processes_there_are(share: str, processes: int, hubs: HubFactory) -> None:
    with anyio.fail_after(20):
        async with hubs(time_server(third_party.mcp2_python, share=share)) as hub:
            async with hub.task("a") as a, hub.task("b") as b:
                await ask_the_time(a)
                await ask_the_time(b)
                statistics = hub.statistics()
                slots = [*statistics.shared, *(slot for task in statistics.tasks for slot in task.slots)]
                assert len({slot.pid for slot in slots}) == len(slots) == statistics.starts == processes


@pytest.mark.parametrize(
    ("python", "era"), [(third_party.mcp2_python, "modern"), (third_party.mcp1_python, "handshake")]
)
async def test_auto_takes_the_newest_era_that_a_server_knows(python: PythonOf, era: str, hubs: HubFactory) -> None:
    async with hubs.task(time_server(python, protocol="auto")) as task:
        await ask_the_time(task)
        session = task._servers["time"].slots[0]._held.value  # statistics do not tell
        assert session.info.era == era


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit."""
    path = tmp_path / "repository"
    path.mkdir()
    (path / "readme").write_text("hello")
    author = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    for command in (["init", "--quiet"], ["add", "readme"], [*author, "commit", "--quiet", "-m", "the first commit"]):
        subprocess.run([third_party.git(), "-C", str(path), *command], check=True)
    return path
