"""The manager itself: its attributes, its logs, where its servers run."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
from pathlib import Path
from typing import Any

import pytest
from miroflow_agents import Make, Params, TaskLog, config, echo_params, tool_params
from real_processes import Process, eventually

from toolhub import ConfigError
from toolhub.miroflow import ToolManager, ToolManagerProtocol, task_id_var

pytestmark = pytest.mark.anyio


def test_it_has_the_attributes_that_callers_touch() -> None:
    configs = [config("a", 1), config("b", 2), config("a", 3)]
    manager = ToolManager(configs, None)
    assert manager.server_configs == configs
    assert manager.server_dict == {"a": 3, "b": 2}
    assert manager.get_server_params("a") == 3
    assert manager.get_server_params("nope") is None
    assert (manager.browser_session, manager.tool_blacklist, manager.task_log) == (None, set(), None)


def test_it_satisfies_the_protocol() -> None:
    manager: ToolManagerProtocol = ToolManager([], {("a", "b")})
    assert repr(manager) == "<ToolManager mirothinker servers=[]>"


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="mirothinker, miroflow, miroflow-tool"):
        ToolManager([], profile="nope")


async def test_a_log_that_fails_does_not_fail_the_call(manager: ToolManager) -> None:
    class Broken:
        def log_step(self, *step: Any) -> None:
            raise RuntimeError("disk full")

    manager.set_task_log(Broken())
    assert (await manager.execute_tool_call("echo", "echo", {"text": "hi"}))["result"] == "hi"


async def test_tasks_that_share_a_manager_have_logs_of_their_own(manager: ToolManager) -> None:
    async def run(name: str) -> TaskLog:
        manager.set_task_log(log := TaskLog())
        await manager.execute_tool_call("echo", "echo", {"text": name})
        return log

    logs = await asyncio.gather(run("a"), run("b"))
    for log, name in zip(logs, "ab", strict=True):
        assert [metadata for *_, metadata in log.steps if metadata] == [{"arguments": {"text": name}}]


def test_a_context_without_a_log_uses_the_last_one() -> None:
    manager, log = ToolManager([]), TaskLog()
    contextvars.copy_context().run(manager.set_task_log, log)
    assert manager.task_log is log


async def test_servers_run_in_the_agents_directory(make: Make, tmp_path: Path) -> None:
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        answer = await make([config("tools", tool_params())]).execute_tool_call("tools", "where", {})
    finally:
        os.chdir(before)
    assert answer["result"].split()[0] == str(tmp_path)


async def test_overlapping_calls_get_processes_of_their_own(make: Make, tmp_path: Path) -> None:
    manager = make([config("tools", tool_params())], max_instances=3)
    arguments = {"path": str(tmp_path / "arrivals"), "count": 3}
    answers = await asyncio.gather(*(manager.execute_tool_call("tools", "meet", arguments) for _ in range(3)))
    assert [answer["result"] for answer in answers] == ["met"] * 3
    pids = {(await manager.execute_tool_call("tools", "where", {}))["result"].split()[2] for _ in range(3)}
    assert len(pids) == 1


async def test_two_managers_never_share_a_process(make: Make) -> None:
    first, second = make([config("e", echo_params(A="1"))]), make([config("e", echo_params(A="2"))])
    values = [await manager.execute_tool_call("e", "env", {"name": "A"}) for manager in (first, second)]
    assert [value["result"] for value in values] == ["1", "2"]


async def test_a_closed_manager_can_be_used_again(manager: ToolManager) -> None:
    async with manager:
        assert (await manager.execute_tool_call("echo", "counter", {}))["result"] == "1"
    assert (await manager.execute_tool_call("echo", "counter", {}))["result"] == "1"


async def test_a_manager_that_is_dropped_ends_its_tools() -> None:
    manager: Any = ToolManager([config("echo", echo_params())])
    server = Process.of(int((await manager.execute_tool_call("echo", "pid", {}))["result"]))
    del manager
    gc.collect()
    await eventually(lambda: not server.is_alive)


async def test_each_task_id_has_servers_of_its_own(make: Make) -> None:
    params = tool_params(A="1")
    manager = make([config("tools", params)], profile="miroflow")

    async def where(task_id: str) -> list[str]:
        task_id_var.set(task_id)
        answer = await manager.execute_tool_call("tools", "where", {})
        words: list[str] = answer["result"].split()
        return words[1:]

    first, second = await asyncio.gather(where("t1"), where("t2"))
    assert (first[0], second[0]) == ("t1", "t2")
    assert first[1] != second[1]
    assert await asyncio.create_task(where("t1")) == first
    assert params.env == {"A": "1"}


@pytest.mark.parametrize("bad", ["..", "../../../../etc", "a\0b", "a\x1b[2J"], ids=ascii)
async def test_a_task_id_that_could_leave_its_place_reaches_no_server(make: Make, bad: str) -> None:
    manager = make([config("tools", tool_params())], profile="miroflow")
    task_id_var.set(bad)
    answer = await manager.execute_tool_call("tools", "where", {})
    assert "result" not in answer and "is not allowed: use 1 to 128 letters" in answer["error"]
    task_id_var.set("t1")
    assert (await manager.execute_tool_call("tools", "where", {}))["result"].split()[1] == "t1"


async def test_mirothinker_adds_no_task_id(make: Make) -> None:
    task_id_var.set("t1")
    answer = await make([config("tools", tool_params())]).execute_tool_call("tools", "where", {})
    assert answer["result"].split()[1] == "-"


async def test_one_bad_server_does_not_cost_the_others(make: Make) -> None:
    manager = make([config("bad name", Params("x")), config("e", echo_params())])
    assert (await manager.execute_tool_call("e", "echo", {"text": "hi"}))["result"] == "hi"
    assert "without whitespace" in (await manager.execute_tool_call("bad name", "t", {}))["error"]
