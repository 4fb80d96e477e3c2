"""Which servers a manager uses on a shared hub: the hub's, or those of its own `params`."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from miroflow_agents import CHECKOUT, Make, Params, TaskLog, agent, config, echo_params
from served_hub import ServedHub, served, stub, write_config

from toolhub import ConfigError
from toolhub.miroflow import NoHub, ToolManager

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub with a server `echo` of its own; over TCP it wants a token and takes no servers."""
    folder = tmp_path_factory.mktemp("hub")
    config = write_config(folder, servers={"echo": stub(env={"WHOSE": "hub"}), "extra": stub()})
    with served(config, "--uds", str(folder / "hub.sock"), env={"TOOLHUB_TOKEN": TOKEN}, token=TOKEN) as running:
        yield running


@pytest.fixture
def unix(hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager finds the hub at its unix socket."""
    monkeypatch.setenv("TOOLHUB_URL", f"unix://{hub.uds}")


@pytest.fixture
def tcp(hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager finds the hub at its TCP port."""
    monkeypatch.setenv("TOOLHUB_URL", hub.http)
    monkeypatch.setenv("TOOLHUB_TOKEN", TOKEN)


async def whose(manager: ToolManager, server: str) -> str:
    """Which of the two servers answers, or the error."""
    answer = await manager.execute_tool_call(server, "env", {"name": "WHOSE"})
    return str(answer.get("result", answer.get("error")))


async def definitions(manager: ToolManager) -> list[dict[str, Any]]:
    with anyio.fail_after(60):
        return await manager.get_all_tool_definitions()


MINE = [config("echo", echo_params(WHOSE="mine")), config("own", echo_params(WHOSE="mine"))]


@pytest.mark.usefixtures("unix")
async def test_by_default_the_hub_s_server_comes_before_the_manager_s_of_the_same_name(make: Make) -> None:
    manager = make(MINE)
    assert [await whose(manager, "echo"), await whose(manager, "own")] == ["hub", "mine"]


@pytest.mark.usefixtures("unix")
@pytest.mark.parametrize("by", ["parameter", "variable"])
async def test_mine_leaves_out_the_hub_s_servers(make: Make, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "variable":
        monkeypatch.setenv("TOOLHUB_SERVERS", "mine")
    manager = make(MINE, servers="mine" if by == "parameter" else None)
    assert [await whose(manager, "echo"), await whose(manager, "own")] == ["mine", "mine"]


@pytest.mark.usefixtures("unix")
async def test_hub_leaves_out_the_manager_s_own_and_says_which_the_hub_has(make: Make) -> None:
    manager = make(MINE, servers="hub")
    assert await whose(manager, "echo") == "hub"
    refusal = await whose(manager, "own")
    assert "has no server 'own' (it has: echo, extra)" in refusal and "TOOLHUB_SERVERS=hub-then-mine" in refusal


@pytest.mark.usefixtures("tcp")
async def test_a_name_without_params_means_the_hub_s_server_also_over_tcp(make: Make) -> None:
    manager = make([{"name": "echo"}, {"name": "gone"}])
    assert await whose(manager, "echo") == "hub"
    assert "server 'gone' has no params" in await whose(manager, "gone")
    first, second = await manager.get_all_tool_definitions()
    assert "env" in {tool["name"] for tool in first["tools"]}
    assert "server 'gone' has no params" in second["tools"][0]["error"]


@pytest.mark.usefixtures("tcp")
async def test_over_tcp_a_server_that_only_the_manager_has_is_refused_with_the_way_that_works(make: Make) -> None:
    manager = make(MINE)
    refusal = await whose(manager, "own")
    assert "Put 'own' into the hub's config" in refusal and '{"name": "own"}' in refusal
    assert await whose(manager, "echo") == "hub"  # the refusal of one costs no other


@pytest.mark.usefixtures("unix")
async def test_a_name_without_params_needs_the_hub_s_servers(make: Make) -> None:
    manager = make([{"name": "echo"}], servers="mine")
    assert "TOOLHUB_SERVERS=mine leaves out the hub's servers" in await whose(manager, "echo")


async def test_a_private_hub_has_no_server_for_a_name_without_params(make: Make) -> None:
    said = await whose(make([{"name": "echo"}]), "echo")
    assert "server 'echo' has no params" in said and "set TOOLHUB_URL" in said


@pytest.mark.usefixtures("unix")
async def test_where_each_server_comes_from_is_said_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="toolhub.miroflow")
    log = TaskLog()
    for _ in range(2):
        manager = make([*MINE, {"name": "gone"}])
        manager.set_task_log(log)
        await whose(manager, "echo")
        await whose(manager, "own")
    tables = [record.getMessage() for record in caplog.records if "servers of this ToolManager" in record.getMessage()]
    assert len(tables) == 1
    head, echo, own, gone = tables[0].splitlines()
    assert "hub-then-mine" in head and "unix://" in head
    assert echo.split(maxsplit=1) == ["echo", "the hub's config"]
    assert own.split(maxsplit=1) == ["own", "the manager's own params"]
    assert "cannot be used" in gone
    steps = [message for level, step, message, _ in log.steps if step == "ToolManager | Servers"]
    assert steps == tables * 2  # each task's log has it


async def test_mirothinker_s_servers_come_from_a_hub_with_its_config(make: Make, tmp_path: Path) -> None:
    names = ["search_and_scrape_webpage", "jina_scrape_llm_summary", "tool-python"]
    keys = {"SERPER_API_KEY": "unused", "XDG_STATE_HOME": str(tmp_path)}
    mirothinker = shutil.copy(CHECKOUT / "configs" / "mirothinker_1.7.yaml", tmp_path)
    broken = Params("/nowhere/python", ["-m", "miroflow_tools.mcp_servers.x"])
    with served(Path(mirothinker), "--uds", str(tmp_path / "hub.sock"), env=keys) as hub:
        manager = make([config(name, broken) for name in names], hub=f"unix://{hub.uds}")
        found = {entry["name"]: {tool.get("name") for tool in entry["tools"]} for entry in await definitions(manager)}
    assert list(found) == names
    assert found["search_and_scrape_webpage"] == {"google_search"}
    assert found["jina_scrape_llm_summary"] == {"scrape_and_extract_info"}
    assert {"create_sandbox", "run_command", "run_python_code"} <= found["tool-python"]


@pytest.mark.usefixtures("unix")
async def test_the_hub_s_own_time_limit_holds_for_its_servers(make: Make, tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"echo": stub(call_timeout_s=0.5)})
    with served(config, "--uds", str(tmp_path / "hub.sock")) as hub:
        answer = await make([{"name": "echo"}], hub=f"unix://{hub.uds}").execute_tool_call(
            "echo", "sleep", {"seconds": 60}
        )
    assert "0.5 s" in answer["error"]


@pytest.mark.usefixtures("unix")
async def test_the_run_s_label_reaches_the_hub(make: Make, hub: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_RUN", "sweep-7")
    await whose(make(MINE), "echo")
    await whose(make(MINE, run="sweep-8"), "echo")
    with hub.client(unix=True) as client:
        runs = {task["run"] for task in client.get("/v1/tasks").json()["tasks"]}
    assert {"sweep-7", "sweep-8"} <= runs


def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_SERVERS", "theirs")
    with pytest.raises(ConfigError, match="'theirs'; it must be hub, mine or hub-then-mine"):
        ToolManager([])


def test_the_hub_s_servers_need_a_hub() -> None:
    with pytest.raises(ConfigError, match="set TOOLHUB_URL"):
        ToolManager([], servers="hub")


# --- no hub at all --------------------------------------------------------------------------------------------------

NOWHERE = "/nowhere/toolhub"


async def uses(manager: ToolManager) -> None:
    await manager.execute_tool_call("echo", "echo", {"text": "hi"})


@pytest.mark.parametrize("use", [uses, ToolManager.get_all_tool_definitions], ids=["call", "definitions"])
async def test_without_a_hub_the_first_use_raises_with_the_ways_out(make: Make, use: object, tmp_path: Path) -> None:
    assert callable(use)
    cannot_start = make(MINE, hub_command=NOWHERE)
    nobody_there = make(MINE, hub=f"unix://{tmp_path}/none.sock")
    for manager, reason in ((cannot_start, "cannot run the hub"), (nobody_there, "no hub answers at")):
        with pytest.raises(NoHub) as caught:
            await use(manager)
        said = str(caught.value)
        assert reason in said and "TOOLHUB_COMMAND" in said and "TOOLHUB_TOLERANT=1" in said
        assert "`toolhub serve`" in said and "set TOOLHUB_URL" in said


async def test_a_batch_raises_too(make: Make) -> None:
    calls = [{"id": n, "server_name": "echo", "tool_name": "echo", "arguments": {"text": "hi"}} for n in range(3)]
    with pytest.raises(NoHub):
        await make(MINE, hub_command=NOWHERE).execute_tool_calls_batch(calls)


@pytest.mark.usefixtures("tcp")
async def test_a_wrong_token_is_no_hub_either(make: Make) -> None:
    with pytest.raises(NoHub, match="set TOOLHUB_TOKEN"):
        await whose(make(MINE, token="wrong"), "echo")


def test_an_agent_without_a_hub_does_not_exit_with_0() -> None:
    script = """
import asyncio
from toolhub.miroflow import NoHub, ToolManager
print(asyncio.run(ToolManager([{"name": "e", "params": {"command": "x"}}]).get_all_tool_definitions()))
"""
    strict = agent(script, TOOLHUB_COMMAND=NOWHERE)
    assert strict.returncode == 1 and "NoHub: cannot run the hub `/nowhere/toolhub`" in strict.stderr
    tolerant = agent(script, TOOLHUB_COMMAND=NOWHERE, TOOLHUB_TOLERANT="1")
    assert tolerant.returncode == 0 and "Unable to fetch tools: cannot run the hub" in tolerant.stdout


async def test_a_hub_that_goes_away_later_costs_only_the_call(make: Make, tmp_path: Path) -> None:
    config = write_config(tmp_path, servers={"echo": stub(env={"WHOSE": "hub"})})
    socket = str(tmp_path / "hub.sock")
    with served(config, "--uds", socket) as hub:
        manager = make([{"name": "echo"}], hub=f"unix://{socket}")
        assert await whose(manager, "echo") == "hub"
        assert hub.stop() == 0
    assert "no hub answers at" in await whose(manager, "echo")
    with served(config, "--uds", socket):
        assert await whose(manager, "echo") == "hub"
        await manager.aclose()
