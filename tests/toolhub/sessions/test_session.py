"""One incarnation: what its calls come to, and what is said about its end."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from in_memory_hub import Pausing, a_call, a_spec, echo
from running import Running

from toolhub.channel.base import ChannelClosed, ExitInfo, OpenFailed, Refused
from toolhub.channel.memory import MemoryServer, text_result
from toolhub.errors import SessionLost, StartError
from toolhub.sessions.lifecycle import IllegalTransition, SessionEvent, SessionState
from toolhub.sessions.session import ERROR_META, open_session

pytestmark = pytest.mark.anyio


def refusing(error: Exception) -> Any:
    async def refuse(*args: Any, **keys: Any) -> Any:
        raise error

    return refuse


async def start_error(exit_info: ExitInfo, reason: str = "it went away", **keys: Any) -> StartError:
    @asynccontextmanager
    async def fail():
        raise OpenFailed(reason, exit_info)
        yield

    with pytest.raises(StartError) as caught:
        async with open_session(a_spec(**keys), fail()):
            raise AssertionError("it must not open")
    return caught.value


async def test_an_open_session_is_ready_and_says_what_it_is():
    async with open_session(a_spec(), MemoryServer(echo=echo).open()) as session:
        assert session.is_ready
        assert repr(session) == "<Session memory READY pid=1001 in_flight=0>"
        assert session.info.name == "memory"


async def test_a_call_brings_the_server_s_answer_and_counts():
    async with open_session(a_spec(), MemoryServer(echo=echo).open()) as session:
        call = a_call()
        assert (await session.call(call)).raw == text_result("")
        assert (session.calls, session.in_flight, call.delivery.sent) == (1, 0, "maybe")


async def test_a_json_rpc_error_is_a_result_for_the_model_that_keeps_the_original():
    server = MemoryServer(echo=echo)
    async with open_session(a_spec(), server.open()) as session:
        server.live[0].request = refusing(Refused(-32602, "no such path", {"path": "/x"}))
        result = await session.call(a_call())
        assert (result.is_error, result.text) == (True, "no such path")
        original = {"code": -32602, "message": "no such path", "data": {"path": "/x"}}
        assert result.raw["_meta"][ERROR_META] == original


async def test_a_death_fails_every_call_in_flight_and_names_the_exit_code():
    server, pause = MemoryServer(), Pausing()
    server.tools = {"pause": pause}
    async with open_session(a_spec(), server.open()) as session, anyio.create_task_group() as tasks:
        calls = [Running(tasks, session.call, a_call("pause")) for _ in range(3)]
        await anyio.wait_all_tasks_blocked()
        assert session.in_flight == 3
        server.die(-9)
        for call in calls:
            error = await call.wait()
            assert isinstance(error, SessionLost)
            assert (error.sent, error.exit_code, error.tool) == ("maybe", -9, "pause")
            assert "was killed by signal 9; 'pause' may or may not have been executed" in str(error)
        assert session.in_flight == 0


async def test_a_request_that_never_left_is_said_to_be_unsent():
    server = MemoryServer(echo=echo)
    async with open_session(a_spec(), server.open()) as session:
        server.live[0].request = refusing(ChannelClosed("refused", sent="no"))
        call = a_call()
        with pytest.raises(SessionLost, match="nothing was sent") as caught:
            await session.call(call)
        assert (caught.value.sent, call.delivery.sent) == ("no", "no")


async def test_a_cancelled_call_is_cancelled_in_the_server_and_the_session_lives_on():
    pause = Pausing()
    async with open_session(a_spec(), MemoryServer(echo=echo, pause=pause).open()) as session:
        async with anyio.create_task_group() as tasks:
            running = Running(tasks, session.call, a_call("pause"))
            await anyio.wait_all_tasks_blocked()
            running.cancel()
            await running.wait()
        assert (pause.entered, pause.inside, session.in_flight) == (1, 0, 0)
        assert not (await session.call(a_call())).is_error


async def test_a_server_without_tools_need_not_know_the_method():
    server = MemoryServer()
    async with open_session(a_spec(), server.open()) as session:
        server.live[0].list_tools = refusing(Refused(-32601, "Method not found"))
        assert await session.list_tools() == []


async def test_a_server_that_dies_while_listing_is_lost():
    server = MemoryServer()
    async with open_session(a_spec(), server.open()) as session:
        server.live[0].list_tools = refusing(ChannelClosed())
        with pytest.raises(SessionLost):
            await session.list_tools()


async def test_log_lines_of_a_shared_session_go_to_nobody_while_several_calls_run():
    seen = []

    async def remember(method, params=None, *, on_progress=None, on_log=None):
        seen.append(on_log)
        await go.wait()
        return text_result("")

    async def listener(params):
        raise AssertionError("not called here")

    server, go = MemoryServer(), anyio.Event()
    async with open_session(a_spec(share="hub"), server.open()) as session, anyio.create_task_group() as tasks:
        server.live[0].request = remember
        for _ in range(2):
            Running(tasks, session.call, a_call(on_log=listener))
            await anyio.wait_all_tasks_blocked()
        go.set()
    assert seen == [listener, None]


async def test_a_start_that_fails_is_told_with_cause_and_stderr():
    error = await start_error(ExitInfo(exit_code=3, stderr=["Traceback", "KeyError: 'HOME'"]))
    assert str(error).startswith("server 'memory' did not start: it went away; exited with 3; its last stderr lines:")
    assert "    KeyError: 'HOME'" in str(error)
    assert error.stderr_tail == ("Traceback", "KeyError: 'HOME'")
    assert (error.sent, error.server) == ("no", "memory")


async def test_a_start_that_fails_silently_is_told_with_the_command_to_try_by_hand():
    assert "run it by hand to see more: unused --port 1" in str(
        await start_error(ExitInfo(exit_code=1), args=["--port", "1"])
    )


async def test_a_server_that_prints_on_stdout_is_told_to_stop_it():
    assert "2 lines on stdout that are not JSON-RPC (last: 'Listening')" in str(
        await start_error(ExitInfo(noise=["Hello", "Listening"], noise_lines=2))
    )


async def test_no_secret_is_quoted():
    keys = {"env": {"API_KEY": "hunter2hunter2"}, "args": ["--verbose"]}
    error = await start_error(ExitInfo(stderr=["bad key hunter2hunter2"]), "no hunter2hunter2", **keys)
    assert "hunter2" not in str(error) + repr(error.stderr_tail)
    assert error.stderr_tail == ("bad key ***",)


async def test_a_failure_after_the_start_is_not_called_a_failed_start():
    with pytest.raises(OpenFailed, match="later"):
        async with open_session(a_spec(), MemoryServer().open()):
            raise OpenFailed("later")


async def test_a_session_never_moves_backwards():
    async with open_session(a_spec(), MemoryServer().open()) as session:
        session.handle(SessionEvent.DEATH)
        assert session.state is SessionState.FAILED
        with pytest.raises(IllegalTransition):
            session.handle(SessionEvent.CLOSE)
