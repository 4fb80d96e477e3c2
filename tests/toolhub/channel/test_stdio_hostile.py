"""Servers that misbehave cost only themselves: a good neighbour in the same task answers meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from real_processes import HubFactory, below, eventually, fixture, noted, pid_of, shim_of

from toolhub import CallTimeout, HubTask, ServerSpec, SessionLost, StartError

pytestmark = pytest.mark.anyio

SECRET = "sk-0123456789abcdef"


async def neighbour_answers(task: HubTask) -> None:
    with anyio.fail_after(30):
        assert (await task.call("good", "echo", {"text": "fine"})).text == "fine"


async def refusal_of(hubs: HubFactory, bad: ServerSpec) -> StartError:
    """Why `bad` does not start, asked while its neighbour answers."""
    errors: list[StartError] = []

    async def call_the_bad_one(task: HubTask) -> None:
        with pytest.raises(StartError) as caught:
            await task.call(bad.name, "echo", {"text": "hello"})
        errors.append(caught.value)

    async with hubs.task(fixture("echo", name="good"), bad) as task:
        async with anyio.create_task_group() as callers:
            callers.start_soon(call_the_bad_one, task)
            await neighbour_answers(task)
        await neighbour_answers(task)
        assert [tool.server for tool in await task.tools()][0] == "good"
    (error,) = errors
    assert error.sent == "no" and error.server == bad.name
    assert f"server {bad.name!r}" in str(error)
    assert SECRET not in str(error) + repr(error.stderr_tail)
    return error


async def works(hubs: HubFactory, odd: ServerSpec) -> None:
    """`odd` is strange and yet a server: its calls and its neighbour's are answered."""
    async with hubs.task(fixture("echo", name="good"), odd) as task:
        for text in ("one", "two"):
            assert (await task.call(odd.name, "echo", {"text": text})).text == text
            await neighbour_answers(task)
        assert {tool.server for tool in await task.tools()} == {"good", odd.name}


async def test_a_server_that_never_answers_is_given_its_start_timeout(hubs: HubFactory) -> None:
    error = await refusal_of(hubs, fixture("never_answers", start_timeout_s=0.5))
    assert "within 0.5 s (start_timeout_s)" in str(error)
    assert "run it by hand" in str(error) and "never_answers.py" in str(error)


async def test_a_server_that_exits_at_once_is_quoted(hubs: HubFactory) -> None:
    error = await refusal_of(hubs, fixture("exits_at_once", env={"API_KEY": SECRET}))
    assert "exited with 3" in str(error) and "fatal: no API key" in str(error)
    assert error.stderr_tail == ("fatal: no API key",)


async def test_a_secret_that_a_server_prints_is_not_in_its_error(hubs: HubFactory, tmp_path: Path) -> None:
    script = tmp_path / "leaky.py"
    script.write_text("import os, sys; sys.exit('cannot log in with ' + os.environ['API_KEY'])")
    bad = fixture("echo").model_copy(update={"name": "leaky", "args": [str(script)], "env": {"API_KEY": SECRET}})
    error = await refusal_of(hubs, bad)
    assert "cannot log in with" in str(error)


async def test_only_garbage_on_stdout_is_explained(hubs: HubFactory) -> None:
    error = await refusal_of(hubs, fixture("only_garbage", start_timeout_s=0.5))
    assert "1000 lines on stdout that are not JSON-RPC (last: 'garbage 999')" in str(error)
    assert "log to stderr" in str(error)


async def test_a_missing_command_is_named(hubs: HubFactory) -> None:
    error = await refusal_of(hubs, ServerSpec(name="bad", command="no-such-program-anywhere"))
    assert "'no-such-program-anywhere' not found on PATH" in str(error) and "install it" in str(error)


async def test_a_missing_directory_is_named(hubs: HubFactory, tmp_path: Path) -> None:
    error = await refusal_of(hubs, fixture("echo", cwd=str(tmp_path / "gone")))
    assert f"working directory {str(tmp_path / 'gone')!r}" in str(error) and "`cwd`" in str(error)


async def test_a_file_that_is_not_executable_is_named(hubs: HubFactory, tmp_path: Path) -> None:
    script = tmp_path / "server.sh"
    script.write_text("#!/bin/sh\n")
    error = await refusal_of(hubs, ServerSpec(name="bad", command=str(script)))
    assert f"chmod +x {script}" in str(error)


async def test_noise_on_stdout_is_skipped(hubs: HubFactory) -> None:
    await works(hubs, fixture("banner"))


async def test_a_flood_on_stderr_is_drained(hubs: HubFactory) -> None:
    await works(hubs, fixture("floods_stderr"))


async def test_a_server_that_exits_on_unknown_methods_is_not_probed(hubs: HubFactory) -> None:
    await works(hubs, fixture("exits_on_unknown"))


async def test_a_slow_start_is_waited_for(hubs: HubFactory) -> None:
    await works(hubs, fixture("slow_start", env={"START_DELAY": "0.5"}))


async def test_a_server_that_leaves_daemons_behind_works(hubs: HubFactory) -> None:
    await works(hubs, fixture("daemonises"))


async def test_a_server_that_ignores_eof_and_sigterm_works(hubs: HubFactory) -> None:
    await works(hubs, fixture("ignores_eof_and_term", stop_timeout_s=0.2))


async def test_invalid_utf8_becomes_replacement_characters(hubs: HubFactory) -> None:
    async with hubs.task(fixture("invalid_utf8")) as task:
        assert (await task.call("invalid_utf8", "bad")).text == "caf\ufffd \ufffd"
        assert (await task.call("invalid_utf8", "echo", {"text": "é"})).text == "é"


async def test_a_server_that_stops_reading_costs_its_callers_only(hubs: HubFactory) -> None:
    deaf = fixture("no_stdin_read", stop_timeout_s=0.2, stateful=False)
    async with hubs.task(fixture("echo", name="good"), deaf) as task:
        assert await task.tools("no_stdin_read")  # from here on it is deaf
        began = anyio.current_time()
        async with anyio.create_task_group() as callers:
            for _ in range(4):  # enough to fill the pipe and what the hub is willing to hold

                async def call() -> None:
                    with pytest.raises(CallTimeout) as caught:
                        await task.call("no_stdin_read", "echo", {"text": "x" * 700_000}, timeout=0.5)
                    assert caught.value.sent == "maybe"

                callers.start_soon(call)
            await neighbour_answers(task)
        assert anyio.current_time() - began < 3  # their deadline, although the cancellation cannot be delivered
        await neighbour_answers(task)


async def test_a_dead_server_whose_child_holds_its_stdout_is_noticed(hubs: HubFactory, tmp_path: Path) -> None:
    """No end of file ever comes: only watching the process tells."""
    pidfile = tmp_path / "pids"
    async with hubs.task(fixture("holds_stdout", env={"PIDFILE": str(pidfile)})) as task:
        first = pid_of(task, "holds_stdout") if await task.tools() else 0
        (holder,) = noted(pidfile, 1)
        assert holder.is_alive
        with pytest.raises(SessionLost) as caught:
            await task.call("holds_stdout", "die", {"code": 7})
        assert caught.value.sent == "maybe" and caught.value.exit_code == 7
        await eventually(lambda: not holder.is_alive)
        assert (await task.call("holds_stdout", "pid")).text != str(first)


async def test_a_stdout_held_by_a_stranger_does_not_hide_a_death(hubs: HubFactory) -> None:
    """The holder is none of the server's processes, so that ending those does not close the pipe."""
    async with hubs.task(fixture("echo")) as task:
        held = os.open(f"/proc/{(await task.call('echo', 'pid')).text}/fd/1", os.O_WRONLY)
        try:
            with pytest.raises(SessionLost) as caught:
                await task.call("echo", "die", {"code": 7})
            assert caught.value.exit_code == 7
        finally:
            os.close(held)


async def test_an_end_of_file_without_an_exit_ends_the_session(hubs: HubFactory, tmp_path: Path) -> None:
    """The server lives on but has closed its stdout: nothing can come from it any more."""
    script = tmp_path / "mute.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2] / 'fixtures')!r})\n"
        "from echo import add_tools\n"
        "from minimal import Server, linger\n"
        "server = add_tools(Server('mute'))\n"
        "@server.tool('hush')\n"
        "def hush(call):\n"
        "    os.close(1)\n"
        "    linger()\n"
        "server.run()\n"
    )
    mute = fixture("echo").model_copy(update={"name": "mute", "args": ["-S", str(script)], "stop_timeout_s": 0.2})
    async with hubs.task(mute) as task:
        assert (await task.call("mute", "echo", {"text": "still here"})).text == "still here"
        process = below(shim_of(pid_of(task, "mute")).pid)
        with pytest.raises(SessionLost):
            await task.call("mute", "hush")
        await eventually(lambda: not any(each.is_alive for each in process))
