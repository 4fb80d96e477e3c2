"""Time limits, interrupts and cancellation: code ends, and its state is kept where that can be."""

from __future__ import annotations

import math

import anyio
import pytest
from running import Running

from tests.toolhub_sandbox.local.sandbox_stage import patience

pytestmark = pytest.mark.anyio

# Not `while True: pass`: what CPython raises at the end of a tight loop on its first line, no `try` around it catches.
LOOP = "def loop():\n    while True:\n        x = 1\n        y = len('')\n"
STUBBORN = f"{LOOP}while True:\n    try:\n        z = 1\n        loop()\n    except KeyboardInterrupt: pass"


async def run(sandbox, code, **keys):
    with patience():
        return await sandbox.exec_code(code, **keys)


async def begun(sandbox, name="begun"):
    """Wait until code in the sandbox has made the file."""
    with patience():
        await sandbox.run_command(f"until [ -e {name} ]; do sleep 0.01; done")


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(100)",
        "import os; os.system('sleep 100')",
        "import subprocess; subprocess.run(['sleep', '100'])",
        "import asyncio; await asyncio.sleep(100)",
        "import threading; threading.Event().wait()",
        "!sleep 100",
    ],
)
async def test_code_that_takes_too_long_is_interrupted_and_keeps_its_state(sandbox, code):
    await run(sandbox, "x = 1")
    done = await run(sandbox, f"x = 2\nprint('begun')\n{code}", timeout=0.3)
    assert (done.error.name, done.timed_out, done.state, done.stdout) == ("ExecutionTimeout", True, "kept", "begun\n")
    assert done.error.value == "the code did not end within 0.3 s (interrupted, state kept)"
    assert (await run(sandbox, "x")).result == "2"


@pytest.mark.parametrize("code", [STUBBORN, "import os\nwhile True: os.system('sleep 100')"])
async def test_code_that_ignores_the_interrupt_is_killed_and_loses_its_state(sandbox, code):
    await run(sandbox, "x = 1\nopen('file', 'w').close()")
    done = await run(sandbox, code, timeout=0.3)
    assert (done.error.name, done.timed_out, done.state) == ("ExecutionTimeout", True, "lost")
    assert done.error.value.endswith("(killed, state lost: it ignored the interrupt)")
    assert (await run(sandbox, "import os\n'x' in globals(), os.path.exists('file')")).result == "(False, True)"


async def test_the_profile_says_how_long_where_the_caller_does_not(scope):
    with patience():
        sandbox = await scope.create("hasty")
    assert (await run(sandbox, "while True: pass")).timed_out
    with patience():
        assert (await sandbox.run_command("sleep 100")).timed_out


@pytest.mark.parametrize("timeout", [1e9, 1e300, math.inf])
async def test_a_very_long_time_is_as_good_as_any(sandbox, timeout):
    assert (await run(sandbox, "1 + 1", timeout=timeout)).result == "2"
    with patience():
        assert (await sandbox.run_command("echo hi", timeout=timeout)).stdout == "hi\n"


async def test_the_time_of_waiting_for_others_does_not_count(sandbox):
    async with anyio.create_task_group() as tasks:
        first = Running(tasks, sandbox.exec_code, "open('begun', 'w').close()\nimport time; time.sleep(0.6)")
        await begun(sandbox)
        second = await run(sandbox, "'quick'", timeout=0.4)
        assert (second.result, second.timed_out) == ("'quick'", False)
        assert (await first.wait()).error is None


async def test_code_may_clean_up_when_it_is_interrupted(sandbox):
    done = await run(sandbox, f"{LOOP}try:\n    z = 1\n    loop()\nfinally:\n    print('cleaned')", timeout=0.3)
    assert (done.stdout, done.state) == ("cleaned\n", "kept")


async def test_interrupt_raises_keyboard_interrupt_and_keeps_the_state(sandbox):
    async with anyio.create_task_group() as tasks:
        running = Running(tasks, sandbox.exec_code, "x = 1\nopen('begun', 'w').close()\nwhile True: pass")
        await begun(sandbox)
        await sandbox.interrupt()
        done = await running.wait()
    assert (done.error.name, done.timed_out, done.state) == ("KeyboardInterrupt", False, "kept")
    assert 'File "<cell 1>", line 3' in done.error.traceback
    assert (await run(sandbox, "x")).result == "1"


async def test_interrupting_what_does_not_run_does_nothing(sandbox):
    with patience():
        await sandbox.interrupt()
    assert (await run(sandbox, "1 + 1")).result == "2"
    with patience():
        await sandbox.interrupt()
    assert (await run(sandbox, "2 + 2")).result == "4"


async def test_cancelling_interrupts_the_code_and_the_next_works(sandbox):
    async with anyio.create_task_group() as tasks:
        running = Running(tasks, sandbox.exec_code, "x = 1\nopen('begun', 'w').close()\nwhile True: pass")
        await begun(sandbox)
        running.cancel()
        assert await running.wait() is None
    assert (await run(sandbox, "x")).result == "1"


async def test_cancelled_code_that_ignores_it_is_killed(sandbox):
    async with anyio.create_task_group() as tasks:
        running = Running(tasks, sandbox.exec_code, f"open('begun', 'w').close()\n{STUBBORN}")
        await begun(sandbox)
        running.cancel()
        await running.wait()
    assert (await run(sandbox, "1 + 1")).result == "2"


async def test_code_that_is_cancelled_before_its_turn_never_runs(sandbox):
    async with anyio.create_task_group() as tasks:
        first = Running(tasks, sandbox.exec_code, "open('begun', 'w').close()\nwhile True: pass")
        await begun(sandbox)
        second = Running(tasks, sandbox.exec_code, "ran = True")
        await anyio.wait_all_tasks_blocked()
        second.cancel()
        await second.wait()
        await sandbox.interrupt()
        assert (await first.wait()).error.name == "KeyboardInterrupt"
    assert (await run(sandbox, "'ran' in globals()")).result == "False"


async def test_cancelling_a_command_ends_all_that_it_started(sandbox):
    async with anyio.create_task_group() as tasks:
        running = Running(tasks, sandbox.run_command, "touch begun; setsid sleep 1234 & sleep 1234")
        await begun(sandbox)
        running.cancel()
        await running.wait()
    with patience():
        left = await sandbox.run_command("while pgrep -f 'sleep 123[4]'; do sleep 0.01; done; echo none")
    assert left.stdout.endswith("none\n")


async def test_cancelling_while_much_is_sent_does_not_end_the_sandbox(sandbox):
    await run(sandbox, "x = 1")
    for _ in range(5):
        with anyio.move_on_after(0):
            await sandbox.exec_code("#" * (8 << 20))
        async with anyio.create_task_group() as tasks:
            sending = Running(tasks, sandbox.exec_code, "#" * (8 << 20))
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            sending.cancel()
    assert (await run(sandbox, "x")).result == "1"


async def test_a_cancel_is_heard_while_somebody_else_sends_much(sandbox):
    async with anyio.create_task_group() as tasks:
        running = Running(tasks, sandbox.exec_code, "open('begun', 'w').close()\nwhile True: pass")
        await begun(sandbox)
        sending = Running(tasks, sandbox.put, "big", b"x" * (32 << 20))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        running.cancel()
        await running.wait()
        assert await sending.wait() is None
    assert (await run(sandbox, "1 + 1", timeout=5)).result == "2"
