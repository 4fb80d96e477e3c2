"""What a stdio server gets from its surroundings: its own variables, an allow-list of the hub's, a directory."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from real_processes import HubFactory, fixture

pytestmark = pytest.mark.anyio


async def test_interleaved_tasks_see_their_own_task_variables(hubs: HubFactory) -> None:
    spec = fixture("echo", env={"TASK_ID": "${task.id}", "WHO": "${task.who}"})
    seen: dict[str, list[str]] = {"a": [], "b": []}
    with anyio.fail_after(30):
        async with hubs(spec) as hub:
            async with hub.task("a", labels={"who": "ann"}) as a, hub.task("b", labels={"who": "bob"}) as b:
                for _ in range(3):
                    for task in (a, b):
                        seen[task.id].append((await task.call("echo", "env", {"name": "TASK_ID"})).text)
                        seen[task.id].append((await task.call("echo", "env", {"name": "WHO"})).text)
    assert seen == {"a": ["a", "ann"] * 3, "b": ["b", "bob"] * 3}


async def test_the_hubs_variables_stay_with_the_hub(hubs: HubFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_X", "hunter2-hunter2")
    monkeypatch.setenv("WANTED", "yes")
    spec = fixture("echo", inherit_env=["WANTED"], env={"OWN": "mine"})
    async with hubs.task(spec) as task:

        async def value(name: str) -> str:
            return (await task.call("echo", "env", {"name": name})).text

        assert await value("SECRET_X") == ""
        assert await value("WANTED") == "yes"
        assert await value("OWN") == "mine"
        assert (await value("PATH")).startswith(os.environ["PATH"])


async def test_a_servers_own_variable_wins_over_an_inherited_one(
    hubs: HubFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANTED", "the hub's")
    spec = fixture("echo", inherit_env=["WANTED"], env={"WANTED": "its own"})
    async with hubs.task(spec) as task:
        assert (await task.call("echo", "env", {"name": "WANTED"})).text == "its own"


async def test_a_server_starts_in_its_directory(hubs: HubFactory, tmp_path: Path) -> None:
    directory = tmp_path / "ünter wegs"
    directory.mkdir()
    async with hubs.task(fixture("echo", cwd=str(directory))) as task:
        pid = (await task.call("echo", "pid")).text
        assert os.readlink(f"/proc/{pid}/cwd") == str(directory)
