"""Task scopes: opened once, closed with everything they own, and nothing else."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from in_memory_hub import WAIT_TIMEOUT_S, Pausing, a_hub, a_spec, echo
from running import Running
from task_values import BAD_VALUES

from toolhub import ConfigError, Hub, HubClosed, Overloaded, StartError, TaskClosed, ToolNotFound
from toolhub.channel.memory import MemoryServer
from toolhub.config import parse_config

pytestmark = pytest.mark.anyio


async def test_a_task_calls_a_tool():
    async with a_hub(MemoryServer(echo=echo)) as hub, hub.task("t1") as task:
        assert (await task.call("memory", "echo", {"text": "hello"})).text == "hello"
        assert repr(task) == "<HubTask t1 servers=['memory'] calls=1>"


async def test_a_hub_is_entered_once_and_refuses_tasks_before_and_after():
    hub = a_hub(MemoryServer())
    with pytest.raises(HubClosed, match="not running"):
        await hub.open_task("t")
    async with hub:
        with pytest.raises(RuntimeError, match="entered once"):
            await hub.__aenter__()
    with pytest.raises(HubClosed, match="shutting down"):
        await hub.open_task("t")


async def test_an_id_is_open_once():
    async with a_hub(MemoryServer()) as hub, hub.task("t1"):
        with pytest.raises(ConfigError, match="'t1' is already open"):
            await hub.open_task("t1")


async def test_of_many_who_open_the_same_id_at_once_one_does():
    async with a_hub(MemoryServer()) as hub, anyio.create_task_group() as tasks:
        outcomes = [await each.wait() for each in [Running(tasks, hub.open_task, "t1") for _ in range(10)]]
        assert sum(isinstance(outcome, ConfigError) for outcome in outcomes) == 9
        assert [task.id for task in hub.tasks] == ["t1"]


async def test_an_id_is_free_again_once_its_task_is_closed():
    async with a_hub(MemoryServer()) as hub:
        first = await hub.open_task("t1")
        await hub.close_task("t1")
        second = await hub.open_task("t1")
        assert first is not second
        assert hub.get_task("t1") is second


async def test_a_task_that_has_ended_is_freed_without_the_garbage_collector():
    async with Hub(parse_config({"servers": {"clock": {"builtin": "clock", "share": "hub"}}})) as hub:
        gc.disable()
        try:
            task = await hub.open_task("t1")
            await task.call("clock", "get_current_time", {"timezone": "UTC"})
            freed = weakref.ref(task)
            del task
            await hub.close_task("t1")
            await anyio.wait_all_tasks_blocked()
            assert freed() is None
        finally:
            gc.enable()


async def test_an_id_is_not_taken_by_an_opening_that_failed():
    async with a_hub(MemoryServer(), memory={"args": ["${task.where}"]}) as hub:
        with pytest.raises(ConfigError, match="where"):
            await hub.open_task("t1")
        task = await hub.open_task("t1", labels={"where": "here"})
        assert task.id == "t1"


async def test_tasks_are_limited_also_those_that_open_at_the_same_time():
    async with a_hub(MemoryServer(), limits={"max_tasks": 2}) as hub, anyio.create_task_group() as tasks:
        outcomes = [await each.wait() for each in [Running(tasks, hub.open_task) for _ in range(5)]]
        assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 3
        assert len(hub.tasks) == 2


async def test_a_task_without_an_id_gets_one_of_its_own():
    async with a_hub(MemoryServer()) as hub, hub.task() as one, hub.task() as other:
        assert one.id != other.id


async def test_the_end_of_a_task_ends_its_sessions_and_only_those():
    server = MemoryServer(echo=echo)
    hub = a_hub(server, own={}, shared={"share": "hub"})
    async with hub, hub.task("staying") as staying:
        async with hub.task("leaving") as leaving:
            for task in (staying, leaving):
                await task.call("own", "echo")
                await task.call("shared", "echo")
            assert len(server.live) == 3
        assert len(server.live) == 2
        await staying.call("own", "echo")
        await staying.call("shared", "echo")
        assert server.opened == 3
    assert server.live == []


@pytest.mark.parametrize("how", ["error", "cancellation"])
async def test_a_task_whose_block_ends_badly_is_closed_all_the_same(how):
    server = MemoryServer(echo=echo)
    async with a_hub(server) as hub:
        with anyio.CancelScope() as scope:
            try:
                async with hub.task("t1") as task:
                    await task.call("memory", "echo")
                    if how == "error":
                        raise ZeroDivisionError
                    scope.cancel()
                    await anyio.sleep_forever()
            except ZeroDivisionError:
                pass
        assert (server.live, hub.tasks) == ([], [])


async def test_closing_a_task_twice_or_never_opened_does_nothing():
    async with a_hub(MemoryServer()) as hub:
        await hub.open_task("t1")
        for task_id in ("t1", "t1", "never"):
            await hub.close_task(task_id)


async def test_a_closed_task_refuses_everything():
    async with a_hub(MemoryServer(echo=echo)) as hub:
        async with hub.task("t1") as task:
            pass
        for refused in (lambda: task.call("memory", "echo"), task.tools, lambda: task.tools("memory")):
            with pytest.raises(TaskClosed):
                await refused()
        with pytest.raises(TaskClosed):
            await task.renew()
        with pytest.raises(TaskClosed, match="no open task 't1'"):
            hub.get_task("t1")


async def test_a_call_in_flight_is_told_that_its_task_was_closed():
    pause = Pausing()
    async with a_hub(MemoryServer(pause=pause)) as hub, anyio.create_task_group() as tasks:
        task = await hub.open_task("t1")
        running = Running(tasks, task.call, "memory", "pause")
        await anyio.wait_all_tasks_blocked()
        await hub.close_task("t1")
        assert isinstance(await running.wait(), TaskClosed)
        assert pause.inside == 0


async def test_a_call_waiting_for_a_start_is_told_that_its_task_was_closed():
    server = MemoryServer(echo=echo)
    server.may_open = anyio.Event()
    async with a_hub(server) as hub, anyio.create_task_group() as tasks:
        task = await hub.open_task("t1")
        waiting = Running(tasks, task.call, "memory", "echo")
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(WAIT_TIMEOUT_S):
            await hub.close_task("t1")
        assert isinstance(await waiting.wait(), TaskClosed)


async def test_a_call_waiting_for_a_place_is_told_that_its_task_was_closed():
    hub = a_hub(MemoryServer(pause=Pausing()), memory={"concurrency": 1})
    async with hub, anyio.create_task_group() as tasks:
        task = await hub.open_task("t1")
        for _ in range(2):
            last = Running(tasks, task.call, "memory", "pause")
            await anyio.wait_all_tasks_blocked()
        await hub.close_task("t1")
        assert isinstance(await last.wait(), TaskClosed)


@pytest.mark.parametrize("share", ["task", "hub", "call"])
async def test_a_hub_with_calls_in_flight_ends_in_bounded_time(share):
    server, pause = MemoryServer(), Pausing()
    server.tools = {"pause": pause}
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(WAIT_TIMEOUT_S):
            async with a_hub(server, memory={"share": share}) as hub:
                task = await hub.open_task("t1")
                calls = [Running(tasks, task.call, "memory", "pause") for _ in range(20)]
                await anyio.wait_all_tasks_blocked()
                assert pause.inside == 20
            outcomes = {type(await each.wait()) for each in calls}
        assert outcomes <= {TaskClosed, HubClosed}
    assert (server.live, pause.inside) == ([], 0)


@pytest.mark.parametrize("share", ["task", "hub", "call"])
async def test_a_hub_whose_servers_are_starting_ends_in_bounded_time(share):
    server = MemoryServer(echo=echo)
    server.may_open = anyio.Event()
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(WAIT_TIMEOUT_S):
            async with a_hub(server, memory={"share": share}) as hub:
                task = await hub.open_task("t1")
                calls = [Running(tasks, task.call, "memory", "echo") for _ in range(3)]
                await anyio.wait_all_tasks_blocked()
            outcomes = {type(await each.wait()) for each in calls}
        assert outcomes <= {TaskClosed, HubClosed}


@pytest.mark.parametrize("head_start", range(6))
async def test_a_task_opened_while_the_hub_ends_is_either_closed_or_refused(head_start):
    server = MemoryServer(echo=echo)
    async with anyio.create_task_group() as tasks:
        async with a_hub(server, memory={"keep_warm": True}) as hub:
            opening = [Running(tasks, hub.open_task) for _ in range(3)]
            for _ in range(head_start):
                await anyio.lowlevel.checkpoint()
        for each in opening:
            outcome = await each.wait()
            if not isinstance(outcome, HubClosed):
                with pytest.raises(TaskClosed):
                    await outcome.call("memory", "echo")
    assert server.live == []


def recording(server: MemoryServer, specs: list[Any]):
    def open_channel(spec, context, profile):
        specs.append(spec)
        return server.open()

    return open_channel


async def test_template_variables_are_filled_per_task_and_the_configured_spec_stays_as_it_was():
    server, specs = MemoryServer(echo=echo), []
    keys = {"args": ["--root", "/data/${task.run}/${task.id}"], "env": {"WHO": "${task.user}"}}
    async with a_hub(recording(server, specs), memory=keys) as hub:
        before = hub.config.model_dump()
        for name in ("a", "b"):
            async with hub.task(name, run="r7", labels={"user": name.upper()}) as task:
                await task.call("memory", "echo")
                assert task.specs["memory"].args == ["--root", f"/data/r7/{name}"]
        assert hub.config.model_dump() == before
    assert [spec.args[1] for spec in specs] == ["/data/r7/a", "/data/r7/b"]
    assert [spec.env for spec in specs] == [{"WHO": "A"}, {"WHO": "B"}]


async def test_a_task_brings_servers_of_its_own():
    server, specs = MemoryServer(echo=echo), []
    async with a_hub(recording(server, specs), memory={}) as hub:
        own = {"mine": a_spec("mine"), "memory": a_spec("memory", args=["--other"])}
        async with hub.task(servers=own) as task:
            assert list(task.servers) == ["memory", "mine"]
            await task.call("memory", "echo")
        alone = await hub.open_task("alone", servers={"mine": a_spec("mine")}, only_these=True)
        with pytest.raises(ToolNotFound):
            await alone.call("memory", "echo")
        await alone.call("mine", "echo")
    assert [(spec.name, spec.args) for spec in specs] == [("memory", ["--other"]), ("mine", [])]


def failing_for(name: str, server: MemoryServer):
    broken = MemoryServer()
    broken.fail_next = ["it is broken"] * 100
    return lambda spec, context, profile: (broken if spec.name == name else server).open()


async def test_a_server_that_cannot_be_reached_costs_only_its_own_tools():
    opener = failing_for("bad", MemoryServer(echo=echo))
    async with a_hub(opener, bad={"args": ["--bad"]}, good={}) as hub, hub.task() as task:
        assert [(tool.server, tool.name) for tool in await task.tools()] == [("good", "echo")]
        found = await task.tools_by_server()
        assert isinstance(found["bad"], StartError)
        assert list(found) == ["bad", "good"]
        with pytest.raises(StartError, match="it is broken"):
            await task.tools("bad")
        with pytest.raises(ToolNotFound):
            await task.tools("ugly")


async def test_warming_starts_every_server_and_tells_the_errors():
    server = MemoryServer(echo=echo)
    opener = failing_for("bad", server)
    async with a_hub(opener, bad={}, good={}, fresh={"share": "call"}) as hub, hub.task() as task:
        errors = await task.warm()
        assert {name: type(error) for name, error in errors.items()} == {"bad": StartError}
        assert server.opened == 1
        await task.call("good", "echo")
        assert server.opened == 1


async def test_tools_are_asked_for_once_and_hidden_ones_are_not_shown():
    server = MemoryServer(echo=echo, secret=echo)
    hub = a_hub(server, memory={"tools": {"deny": ["secret"]}})
    async with hub:
        for _ in range(2):
            async with hub.task() as task:
                assert [tool.name for tool in await task.tools()] == ["echo"]
    assert server.opened == 1


async def test_two_names_for_one_program_each_have_their_own_tools():
    async with a_hub(MemoryServer(echo=echo), one={}, two={}) as hub, hub.task() as task:
        for name in ("one", "two"):
            assert [(tool.server, tool.name) for tool in await task.tools(name)] == [(name, "echo")]


async def test_a_server_that_says_its_tools_changed_is_asked_again():
    server, heard = MemoryServer(echo=echo), []
    async with a_hub(server) as hub, hub.task() as task:
        hub.on_tools_changed(heard.append)
        await task.tools()
        server.tools = server.live[0]._tools = {"echo": echo, "new": echo}
        server.live[0].on_tools_changed()
        assert [tool.name for tool in await task.tools()] == ["echo", "new"]
        assert heard == ["memory"]


async def test_any_request_is_passed_on_to_the_server():
    server = MemoryServer(echo=echo)

    async def request(method, params=None, **listeners):
        return {"asked": method, "with": params}

    async with a_hub(server) as hub, hub.task() as task:
        await task.call("memory", "echo")
        server.live[0].request = request
        answer = await task.request("memory", "resources/list", {"cursor": "x"})
        assert answer == {"asked": "resources/list", "with": {"cursor": "x"}}


async def test_a_hub_without_a_config_has_no_servers():
    async with Hub(open_channel=MemoryServer().open) as hub, hub.task() as task:
        assert await task.tools() == []
        with pytest.raises(ToolNotFound, match="configured: none"):
            await task.call("memory", "echo")


@pytest.mark.parametrize("bad", BAD_VALUES, ids=ascii)
async def test_an_id_that_could_leave_its_place_opens_nothing(bad):
    server = MemoryServer(echo=echo)
    async with a_hub(server, memory={"cwd": "work/${task.id}", "keep_warm": True}) as hub:
        for opening in (hub.open_task(bad), hub.ensure_task(bad), hub.task(bad).__aenter__()):
            with pytest.raises(ConfigError, match="the task id .* is not allowed: use 1 to 128 letters") as caught:
                await opening
            assert str(caught.value).isprintable()
        assert (hub.tasks, server.opened) == ([], 0)


async def test_a_run_or_a_label_that_could_leave_its_place_opens_nothing_where_the_config_uses_it():
    hub = a_hub(MemoryServer(echo=echo), memory={"args": ["${task.run}", "${task.user}"]})
    async with hub:
        for run, user in (("..", "ann"), ("r1", "../ann"), ("", "ann")):
            with pytest.raises(ConfigError, match="is not allowed here: use 1 to 128 letters"):
                await hub.open_task("t1", run=run, labels={"user": user})
        assert hub.tasks == []
        task = await hub.open_task("t1", run="r1", labels={"user": "ann", "note": "any / text"})
        assert task.specs["memory"].args == ["r1", "ann"]
