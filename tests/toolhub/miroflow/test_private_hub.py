"""The hub that a process has for itself: one, started when needed, gone with the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from miroflow_agents import CHECKOUT, HERE, Make, agent, clean_environment, config, echo_params
from real_processes import Process, eventually

import toolhub
from toolhub.miroflow import ToolManager
from toolhub.miroflow import private_hub as module
from toolhub.miroflow.hub_command import hub_commands
from toolhub.miroflow.private_hub import private_hubs

pytestmark = pytest.mark.anyio


@contextmanager
def waiting_agent(*args: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], list[Process]]]:
    """An agent that waits, and the processes it named."""
    path = os.pathsep.join([str(CHECKOUT), str(HERE)])
    env = clean_environment() | {"PYTHONPATH": path} | environ
    command = [sys.executable, str(HERE / "miroflow_waiting_agent.py"), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            assert child.stdout is not None
            yield child, [Process.of(int(pid)) for pid in child.stdout.readline().split()]
        finally:
            child.kill()


async def test_nothing_is_left_of_a_killed_agent(tmp_path: Path) -> None:
    with waiting_agent(TMPDIR=str(tmp_path)) as (agent_process, (hub, server)):
        assert hub.is_alive and server.is_alive
        agent_process.send_signal(signal.SIGKILL)
        await eventually(lambda: not hub.is_alive and not server.is_alive, within=15)
    assert list(tmp_path.glob("toolhub-*")) == []


async def test_a_forked_child_uses_its_parents_hub_with_servers_of_its_own() -> None:
    with waiting_agent("forked") as (_, (hub, server, childs_hub, childs_server)):
        assert childs_hub == hub
        assert childs_server != server
        assert hub.is_alive and server.is_alive


def test_a_process_that_ends_leaves_nothing_and_says_nothing(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from miroflow_agents import config, echo_params
from toolhub.miroflow import ToolManager
manager = ToolManager([config("echo", echo_params())])
print(asyncio.run(manager.execute_tool_call("echo", "echo", {"text": "hi"}))["result"])
"""
    done = agent(script, PYTHONPATH=str(HERE), TMPDIR=str(tmp_path), PYTHONWARNINGS="always")
    assert (done.stdout, done.stderr, done.returncode) == ("hi\n", "", 0)
    assert list(tmp_path.iterdir()) == []


def test_making_a_manager_starts_nothing() -> None:
    script = """
import threading
from toolhub.miroflow import ToolManager
from toolhub.miroflow.private_hub import private_hubs
ToolManager([{"name": "a", "params": {"command": "a"}}])
print(private_hubs._hubs, threading.active_count())
"""
    assert agent(script).stdout == "{} 1\n"


async def test_all_managers_of_a_process_share_it(make: Make) -> None:
    managers = [make([config("echo", echo_params())]) for _ in range(2)]
    async with toolhub.connect(private_hubs.url(hub_commands())) as hub:
        before = len((await hub.statistics())["tasks"])
        for manager in managers:
            await manager.execute_tool_call("echo", "pid", {})
        assert len((await hub.statistics())["tasks"]) == before + 2


async def test_after_it_was_killed_the_next_call_has_a_new_one(make: Make) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "toolhub"]  # not the hub of the other tests
    manager = make([config("echo", echo_params())], hub_command=command)
    assert "result" in await manager.execute_tool_call("echo", "pid", {})
    old_url = private_hubs.url(hub_commands(command))
    async with toolhub.connect(old_url) as hub:
        process = Process.of((await hub.statistics())["pid"])
    process.kill()
    await eventually(lambda: not process.is_alive)
    with anyio.fail_after(20):
        assert "result" in await manager.execute_tool_call("echo", "pid", {})
    assert private_hubs.url(hub_commands(command)) != old_url
    assert not Path(old_url.removeprefix("unix://")).parent.exists()


async def test_a_program_that_is_no_hub_is_quoted(make: Make) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('I am a teapot')"]
    manager = make([config("echo", echo_params())], hub_command=command, tolerant=True)
    answer = await manager.execute_tool_call("echo", "pid", {})
    assert answer["error"].startswith("Tool call failed: the hub `")
    assert "exited with 1; its last lines:\n    I am a teapot" in answer["error"]
    assert "uv tool install 'toolhub-runtime[hub]'" in answer["error"]


async def test_a_hub_that_is_never_ready_is_given_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 0.3)
    monkeypatch.setattr(tempfile, "tempdir", None)
    manager = make([config("echo", echo_params())], hub_command=[sys.executable, "-c", "input()"], tolerant=True)
    (entry,) = await manager.get_all_tool_definitions()
    assert "was not ready within 0.3 s and said nothing" in entry["tools"][0]["error"]


async def test_a_command_that_does_not_exist_is_an_error_text(make: Make) -> None:
    manager = make([config("echo", echo_params())], hub_command="/nowhere/toolhub", tolerant=True)
    answer = await manager.execute_tool_call("echo", "pid", {})
    assert answer["error"].startswith("Tool call failed: cannot run the hub `/nowhere/toolhub`")


async def test_a_manager_can_use_a_hub_that_runs_already(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    url = private_hubs.url(hub_commands())
    monkeypatch.setenv("TOOLHUB_COMMAND", "/nowhere/toolhub")
    monkeypatch.setenv("TOOLHUB_URL", url)
    for manager in (make([config("e", echo_params())]), ToolManager([config("e", echo_params())], hub=url)):
        assert (await manager.execute_tool_call("e", "echo", {"text": "hi"}))["result"] == "hi"
        await manager.aclose()


async def test_an_address_where_nobody_answers_is_an_error_text(make: Make, tmp_path: Path) -> None:
    manager = make([config("e", echo_params())], hub=f"{tmp_path}/none.sock", tolerant=True)
    answer = await manager.execute_tool_call("e", "echo", {})
    assert answer["error"].startswith("Tool call failed: no hub answers at unix://")
    assert "`toolhub serve`" in answer["error"]


async def test_a_task_that_the_hub_closed_is_opened_again(make: Make) -> None:
    manager = make([config("e", echo_params())])
    await manager.execute_tool_call("e", "pid", {})
    (task,) = manager._servers._tasks._process().tasks.values()
    await task.aclose()
    assert (await manager.execute_tool_call("e", "counter", {}))["result"] == "1"
