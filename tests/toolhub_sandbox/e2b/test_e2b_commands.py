"""Commands: exit codes, streams, and ending them with all that they started."""

from __future__ import annotations

import os
from contextlib import suppress

import anyio
import psutil
import pytest
from toolhub_sandbox import SandboxError

from tests.toolhub_sandbox.e2b.standin_stage import patience, profile

pytestmark = pytest.mark.anyio

# One child in the same session, one in its own, and one that its parents have left.
STARTS_OTHERS = "sleep 71 & setsid sleep 72 & (setsid nohup sleep 73 >/dev/null 2>&1 &); echo begun; sleep 74"


def sleeping(service, sandbox):
    lines = []
    for process in service.machines[sandbox.id].living():
        with suppress(psutil.NoSuchProcess):
            lines.append(process.cmdline())
    return sorted(" ".join(line) for line in lines if line[:1] == ["sleep"])


def every_process():
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]


async def test_a_command_that_fails_is_a_result_with_both_streams(sandbox):
    with patience():
        done = await sandbox.run_command("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code, done.timed_out) == ("out\n", "err\n", 3, False)


async def test_a_command_that_works_has_exit_code_zero(sandbox):
    with patience():
        done = await sandbox.run_command("cat <<'END'\nit's \"quoted\" $HOME\nEND")
    assert (done.stdout, done.stderr, done.exit_code) == ('it\'s "quoted" $HOME\n', "", 0)


@pytest.mark.parametrize(
    ("command", "code"), [("sh -c 'kill -TERM $$'", 143), ("kill -KILL $$", 137), ("exec false", 1), ("if", 2)]
)
async def test_exit_codes_are_those_that_a_shell_tells(sandbox, command, code):
    with patience():
        done = await sandbox.run_command(command)
    assert done.exit_code == code


async def test_a_command_has_its_folder_and_its_variables(sandbox):
    with patience():
        await sandbox.put("data/file.txt", b"")
        done = await sandbox.run_command("ls; echo $WORD", cwd="/home/user/data", env={"WORD": "hello"})
    assert done.stdout == "file.txt\nhello\n"


async def test_a_folder_that_is_missing_is_named(sandbox):
    with patience(), pytest.raises(SandboxError, match="/home/user/nowhere"):
        await sandbox.run_command("true", cwd="/home/user/nowhere")
    assert sandbox.is_alive


async def test_output_beyond_the_limit_is_counted_and_dropped_per_stream(backend):
    with patience():
        sandbox = await backend.create("small", profile(output_bytes=10))
        done = await sandbox.run_command("head -c 1000 /dev/zero | tr '\\0' x; echo 12345678901 >&2")
    assert (done.stdout, done.stderr, done.dropped_bytes) == ("x" * 10, "1234567890", 992)


async def test_a_timeout_ends_the_command_with_all_that_it_started(sandbox, service):
    with patience():
        done = await sandbox.run_command(STARTS_OTHERS, timeout=0.5)
    assert (done.stdout, done.timed_out, done.exit_code) == ("begun\n", True, 137)
    assert sleeping(service, sandbox) == []


async def test_a_template_without_root_still_ends_what_timed_out(sandbox, service):
    service.refused_users.add("root")
    with patience():
        done = await sandbox.run_command(STARTS_OTHERS, timeout=0.5)
    assert done.timed_out
    assert sleeping(service, sandbox) == []


async def test_a_process_that_emptied_its_environment_ends_with_its_parent(sandbox):
    nap = f"sleep 76.{os.getpid()}"  # it can only be told by its arguments
    with patience():
        done = await sandbox.run_command(f"env -i {nap} & wait", timeout=0.5)
    assert done.timed_out
    assert nap not in every_process()


async def test_a_cancelled_command_ends_with_all_that_it_started(sandbox, service):
    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.run_command, STARTS_OTHERS)
            while len(sleeping(service, sandbox)) < 4:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert sleeping(service, sandbox) == []


async def test_a_command_cancelled_before_its_process_is_known_is_found_by_its_variable(sandbox, service):
    fault = service.fail("POST /process.Process/Start", until=anyio.Event())
    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.run_command, "sleep 75")
            await service.until(lambda: fault.times < 1_000_000)
            service.faults.clear()
            tasks.cancel_scope.cancel()
    assert any("grep" in script for script in service.started)


async def test_a_timeout_ends_only_its_own_command(sandbox, service):
    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.run_command, "sleep 81")
            while not sleeping(service, sandbox):
                await anyio.sleep(0.01)
            await sandbox.run_command("sleep 82", timeout=0.2)
            assert sleeping(service, sandbox) == ["sleep 81"]
            tasks.cancel_scope.cancel()


async def test_what_a_finished_command_left_in_the_background_goes_on(sandbox, service):
    with patience():
        done = await sandbox.run_command("sleep 83 & echo left", timeout=10)
    assert (done.stdout, done.exit_code, done.timed_out) == ("left\n", 0, False)
    assert sleeping(service, sandbox) == ["sleep 83"]


async def test_commands_run_beside_code(sandbox, service):
    code = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('gone')"
    results = []

    async def run() -> None:
        results.append(await sandbox.exec_code(code))

    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await service.until(lambda: code in service.executed)
            await sandbox.run_command("touch go")
    assert results[0].stdout == "gone\n"


async def test_no_command_is_started_twice(sandbox, service):
    with patience():
        await sandbox.run_command("echo once >> log")
        assert await sandbox.get("log") == b"once\n"
    assert len(service.started) == 1
