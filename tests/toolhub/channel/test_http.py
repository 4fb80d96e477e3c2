"""Servers over streamable HTTP and legacy SSE: calls, death, return, and the two eras of the protocol."""

from __future__ import annotations

import anyio
import pytest
from http_server_process import HttpServer, Serve
from real_processes import HubFactory, eventually, fixture, state_of

from toolhub import CallTimeout, HubTask, SessionLost, StartError
from toolhub.config.server import RestartSettings

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("transport", ["http", "sse"])
AT_ONCE = RestartSettings(backoff_s=0, max_deaths=1000)


@both
async def test_calls_are_answered(transport: str, serve: Serve, hubs: HubFactory) -> None:
    server = serve(transport)
    async with hubs.task(server.spec()) as task:
        assert {"echo", "pid", "die", "big", "slow"} == {tool.name for tool in await task.tools()}
        assert (await task.call("remote", "echo", {"text": "grüße"})).text == "grüße"
        assert task.specs["remote"].transport == transport


@both
async def test_3_mb_are_an_ordinary_answer(transport: str, serve: Serve, hubs: HubFactory) -> None:
    server = serve(transport)
    async with hubs.task(server.spec()) as task:
        assert len((await task.call("remote", "big", {"size": 3_000_000})).text) == 3_000_000


@both
async def test_a_death_during_a_call_costs_that_server_only(transport: str, serve: Serve, hubs: HubFactory) -> None:
    server = serve(transport)
    other = serve("http")
    specs = [server.spec(restart=AT_ONCE), other.spec(name="other"), fixture("echo")]
    async with hubs.task(*specs) as task:
        others = [(await task.call(name, "pid")).text for name in ("other", "echo")]
        with pytest.raises(SessionLost, match="'die' may or may not have been executed") as caught:
            await task.call("remote", "die")
        assert caught.value.sent == "maybe" and not caught.value.state_lost
        assert [(await task.call(name, "pid")).text for name in ("other", "echo")] == others
        with pytest.raises(StartError, match="127.0.0.1"):
            await task.call("remote", "echo", {"text": ""})
        server.stop()
        server.start()
        assert (await task.call("remote", "echo", {"text": "back"})).text == "back"


@both
async def test_after_a_restart_between_calls_the_next_call_works(
    transport: str, serve: Serve, hubs: HubFactory
) -> None:
    server = serve(transport)
    async with hubs.task(server.spec(restart=AT_ONCE)) as task:
        first = (await task.call("remote", "pid")).text
        await die_idle(server, task)
        server.start()
        assert (await task.call("remote", "pid")).text != first
        assert task.statistics().slots[0].starts == 2


@both
async def test_a_call_to_a_dead_server_was_not_sent(transport: str, serve: Serve, hubs: HubFactory) -> None:
    server = serve(transport)
    async with hubs.task(server.spec(restart=AT_ONCE)) as task:
        await task.call("remote", "pid")
        await die_idle(server, task)
        with pytest.raises((StartError, SessionLost)) as caught:
            await task.call("remote", "pid")
        assert caught.value.sent == "no"


@both
async def test_a_stateful_servers_restart_is_told_once(transport: str, serve: Serve, hubs: HubFactory) -> None:
    server = serve(transport)
    async with hubs.task(server.spec(restart=AT_ONCE, stateful=True)) as task:
        await task.call("remote", "pid")
        await die_idle(server, task)
        server.start()
        with pytest.raises(SessionLost) as caught:
            await task.call("remote", "pid")
        assert caught.value.state_lost and caught.value.sent == "no"
        await task.call("remote", "pid")


@both
async def test_a_wedged_server_does_not_hold_up_the_end_of_a_task(
    transport: str, serve: Serve, hubs: HubFactory
) -> None:
    server = serve(transport)
    with anyio.fail_after(60):
        async with hubs(server.spec()) as hub:
            await hub.open_task("t")
            await hub.get_task("t").call("remote", "pid")
            server.freeze()
            with anyio.fail_after(15):
                await hub.close_task("t")


@both
async def test_a_wedged_server_does_not_hold_up_a_task_that_ends_during_a_call(
    transport: str, serve: Serve, hubs: HubFactory
) -> None:
    server = serve(transport)
    with anyio.fail_after(60):
        async with hubs(server.spec()) as hub, anyio.create_task_group() as callers:
            task = await hub.open_task("t")
            await task.call("remote", "pid")
            server.freeze()

            async def call() -> None:
                with pytest.raises(Exception, match="task 't' was closed during remote/pid"):
                    await task.call("remote", "pid")

            callers.start_soon(call)
            await eventually(lambda: task.counts.in_flight)
            with anyio.fail_after(15):
                await hub.close_task("t")


@both
async def test_deadlines_hold_at_a_wedged_server(transport: str, serve: Serve, hubs: HubFactory) -> None:
    """The first cancellation is never answered; the second call must not wait behind it."""
    server = serve(transport)
    async with hubs.task(server.spec()) as task:
        await task.call("remote", "pid")
        server.freeze()
        for _ in range(2):
            began = anyio.current_time()
            with pytest.raises(CallTimeout):
                await task.call("remote", "pid", timeout=0.3)
            assert anyio.current_time() - began < 3


@both
async def test_a_cancelled_call_leaves_the_session_usable(transport: str, serve: Serve, hubs: HubFactory) -> None:
    server = serve(transport)
    async with hubs.task(server.spec()) as task:
        await task.call("remote", "pid")
        with anyio.move_on_after(0.3) as scope:
            await task.call("remote", "slow", {"seconds": 60})
        assert scope.cancelled_caught
        await task.call("remote", "pid")
        assert state_of(task, "remote") == "LIVE"
        assert task.statistics().slots[0].starts == 1


async def test_auto_finds_the_modern_era_of_a_current_server(serve: Serve, hubs: HubFactory) -> None:
    server = serve("http")
    async with hubs.task(server.spec(protocol="auto", restart=AT_ONCE)) as task:
        first = (await task.call("remote", "pid")).text
        assert await era_of(task) == "modern"
        server.stop()
        server.start()
        assert (await task.call("remote", "pid")).text != first
        with pytest.raises(SessionLost) as caught:
            await task.call("remote", "die")
        assert caught.value.sent == "maybe"


async def test_legacy_is_what_a_current_server_is_asked_for_otherwise(serve: Serve, hubs: HubFactory) -> None:
    server = serve("http")
    async with hubs.task(server.spec()) as task:
        await task.call("remote", "pid")
        assert await era_of(task) == "handshake"


async def die_idle(server: HttpServer, task: HubTask) -> None:
    """Kill the server between two calls. Only SSE keeps a connection whose end can be noticed."""
    server.stop()
    if server.transport == "sse":
        await eventually(lambda: state_of(task, "remote") == "BACKOFF")


async def era_of(task: HubTask) -> str:
    session = task._servers["remote"].slots[0]._held.value  # statistics do not tell
    return str(session.info.era)
