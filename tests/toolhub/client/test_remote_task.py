"""A task on a hub elsewhere behaves like one on an embedded hub."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hub_process import HubProcess, echo_server, tcp_hub

import toolhub
from toolhub import CallTimeout, ConfigError, HubTask, StartError, TaskClosed, ToolNotFound, Unauthorized
from toolhub.client import RemoteHub, RemoteTask

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["call", "prefetch", "tools", "tools_by_server", "warm", "renew", "aclose"])
def test_it_has_the_methods_of_a_task_scope(name: str) -> None:
    ours, theirs = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (RemoteTask, HubTask))
    assert ours == theirs


async def test_a_call_returns_the_result_as_it_stood_on_the_wire(task: RemoteTask) -> None:
    result = await task.call("echo", "structured")
    assert result.structured == {"answer": 42}
    assert result.raw["xExtra"] == 1


async def test_an_announced_call_is_accepted_and_has_no_effect_where_nothing_declares_one(task: RemoteTask) -> None:
    await task.prefetch("echo", "echo", {"text": "early"})
    assert (await task.call("echo", "echo", {"text": "early"})).text == "early"


async def test_text_of_any_script_survives_the_way(task: RemoteTask) -> None:
    text = "zażółć 知識 🧰 \u2028 \x00"
    assert (await task.call("echo", "echo", {"text": text})).text == text


async def test_a_megabyte_comes_back_whole(task: RemoteTask) -> None:
    assert len((await task.call("echo", "big", {"size": 1_000_000})).text) == 1_000_000


async def test_a_tools_own_failure_is_a_result(task: RemoteTask) -> None:
    result = await task.call("echo", "fail", {"message": "no"})
    assert (result.is_error, result.text) == (True, "no")


async def test_calls_of_one_task_share_a_process(task: RemoteTask) -> None:
    first, second = await task.call("echo", "pid"), await task.call("echo", "pid")
    assert first.text == second.text


async def test_progress_and_logs_arrive_while_the_call_runs(task: RemoteTask) -> None:
    steps: list[tuple[float, float | None, str | None]] = []
    logs: list[dict[str, Any]] = []

    async def on_progress(*step: Any) -> None:
        steps.append(step)

    async def on_log(params: dict[str, Any]) -> None:
        logs.append(params)

    result = await task.call("echo", "progress", {"steps": 2}, on_progress=on_progress, on_log=on_log)
    assert result.text == "2 steps done"
    assert steps == [(1, 2, None), (2, 2, None)]
    assert logs == [{"level": "info", "logger": "echo", "data": "2 steps"}]


async def test_an_error_arrives_as_its_class_also_in_a_stream(task: RemoteTask) -> None:
    async def ignore(*_: Any) -> None: ...

    streams: list[dict[str, Any]] = [{}, {"on_progress": ignore}]
    for stream in streams:
        with pytest.raises(ToolNotFound, match="no server named 'nope'"):
            await task.call("nope", "echo", **stream)


async def test_the_hub_keeps_the_deadline(task: RemoteTask) -> None:
    with pytest.raises(CallTimeout) as caught:
        await task.call("echo", "sleep", {"seconds": 60}, timeout=0.2)
    assert (caught.value.timeout, caught.value.sent) == (0.2, "maybe")


async def test_the_clients_timeout_is_used_by_calls_that_do_not_say(hub_process: HubProcess) -> None:
    async with toolhub.connect(hub_process.url, timeout=0.2) as hub:
        async with hub.task(servers={"echo": echo_server()}) as task:
            with pytest.raises(CallTimeout):
                await task.call("echo", "sleep", {"seconds": 60})


async def test_tools_are_listed_with_their_schemas(task: RemoteTask) -> None:
    tools = {tool.name: tool for tool in await task.tools("echo")}
    assert tools["echo"].server == "echo"
    assert tools["echo"].input_schema["required"] == ["text"]
    assert [tool.name for tool in await task.tools()] == list(tools)


async def test_fresh_tools_come_from_the_server_itself(task: RemoteTask, hub: RemoteHub) -> None:
    known = [tool.name for tool in await task.tools("echo")]
    assert [tool.name for tool in await task.tools("echo", fresh=True)] == known
    (shown,) = [one for one in (await hub.statistics())["tasks"] if one["id"] == task.id]
    assert [slot["state"] for slot in shown["slots"] if slot["server"] == "echo"] == ["LIVE"]


async def test_a_server_that_does_not_start_costs_only_its_own_tools(hub: RemoteHub) -> None:
    servers = {"echo": echo_server(), "gone": {"command": "no-such-program"}}
    async with hub.task(servers=servers, only_these=True) as task:
        found = await task.tools_by_server()
        assert isinstance(found["gone"], StartError)
        assert isinstance(found["echo"], list)
        assert {name: type(exc) for name, exc in (await task.warm()).items()} == {"gone": StartError}
        with pytest.raises(StartError, match="no-such-program"):
            await task.tools("gone")


async def test_leaving_the_task_ends_it(hub: RemoteHub) -> None:
    async with hub.task("short", servers={"echo": echo_server()}) as task:
        await task.renew()
    with pytest.raises(TaskClosed):
        await task.call("echo", "pid")
    await task.aclose()


async def test_an_id_can_be_open_only_once(hub: RemoteHub) -> None:
    async with hub.task("taken"):
        with pytest.raises(ConfigError, match="already open"):
            await hub.open_task("taken")


async def test_statistics_tell_about_tasks(hub: RemoteHub, task: RemoteTask) -> None:
    await task.call("echo", "pid")
    by_id = {entry["id"]: entry for entry in (await hub.statistics())["tasks"]}
    assert by_id[task.id]["calls"] == 1


async def test_over_tcp_the_token_is_needed_and_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tcp_hub(tmp_path / "hub.yaml", "secret") as process:
        async with toolhub.connect(process.url, token="wrong") as hub:
            with pytest.raises(Unauthorized):
                await hub.open_task()
        monkeypatch.setenv("TOOLHUB_TOKEN", "secret")
        async with toolhub.connect(process.url) as hub, hub.task() as task:
            assert (await task.call("echo", "echo", {"text": "hi"})).text == "hi"
            with pytest.raises(Unauthorized, match="starts no servers of TCP clients"):
                await hub.open_task(servers={"echo": echo_server()})
