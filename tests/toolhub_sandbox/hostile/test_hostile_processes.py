"""Code that will not end, that leaves processes behind, or that attacks the processes it can see."""

from __future__ import annotations

import anyio
import pytest
from real_processes import eventually
from toolhub_sandbox import Execution, SandboxLost

from tests.toolhub_sandbox.hostile.hostile_stage import SMALL, TRIES, HostileStage, patience, tried, value

pytestmark = pytest.mark.anyio

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    for _ in range(3):
        if os.fork():
            os._exit(0)
        os.setsid()
    for fd in range(100):
        try:
            os.close(fd)
        except OSError:
            pass
    while True:
        time.sleep(0.01)
"""
BASH_DAEMON = "setsid sleep 1000 & (setsid nohup sh -c 'trap \"\" TERM HUP INT; sleep 1000 & wait' &) & "
STUBBORN = {
    "catches everything": """
import time
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
""",
    "has a handler": "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\nwhile True: pass",
    "ignores": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "blocks": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "is in C": "import collections, itertools; collections.deque(itertools.count(), maxlen=0)",
    "in a repr": """
import time
class Late:
    def __repr__(self):
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass
Late()
""",
}


def assert_lost(done: Execution, name: str = "WorkerDied") -> None:
    assert done.state == "lost"
    assert done.error is not None and done.error.name == name


async def assert_starts_anew(stage: HostileStage) -> None:
    """The interpreter has been replaced, and nothing of the last one is left."""
    assert await value(stage.box, "'kept' in globals()") is False
    await assert_alone(stage)


async def assert_alone(stage: HostileStage) -> None:
    """Agent and interpreter are all there is; what was killed may take a moment to go."""
    with anyio.fail_after(5):
        while (await stage.box.info()).processes != 2:
            await anyio.sleep(0.01)


@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN.keys())
async def test_code_that_ignores_the_interrupt_is_killed_and_its_loss_told(stage: HostileStage, code: str) -> None:
    with patience():
        await stage.box.exec_code("kept = 1")
        with anyio.fail_after(10):
            done = await stage.box.exec_code(code, timeout=0.3)
        assert done.timed_out
        assert_lost(done, "ExecutionTimeout")
        assert "state lost" in done.error.value
        await assert_starts_anew(stage)


async def test_a_polite_loop_keeps_its_state(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.exec_code("kept = 1\nwhile True: pass", timeout=0.3)
        assert (done.timed_out, done.state) == (True, "kept")
        assert await value(stage.box, "kept") == 1


async def test_a_timeout_ends_daemons_with_the_code_that_started_them(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.exec_code(DAEMON + STUBBORN["ignores"], timeout=0.5)
        assert_lost(done, "ExecutionTimeout")
        await assert_starts_anew(stage)


async def test_a_timeout_ends_the_daemons_of_a_command(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.run_command(BASH_DAEMON + "sleep 1000", timeout=0.5)
        assert done.timed_out and done.exit_code == 137
        await assert_alone(stage)


async def test_a_process_without_its_first_thread_is_found_all_the_same(stage: HostileStage) -> None:
    """It looks dead to whoever reads only its state."""
    code = """
import threading
if os.fork() == 0:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    def live_on():
        while True:
            if os.fork() == 0:
                time.sleep(1000)
            time.sleep(1000)
    threading.Thread(target=live_on).start()
    libc.pthread_exit(None)
time.sleep(0.5)
"""
    with patience():
        done = await stage.box.exec_code(TRIES + code + STUBBORN["ignores"], timeout=1)
        assert_lost(done, "ExecutionTimeout")
        await assert_starts_anew(stage)


async def test_kill_ends_daemons(stage: HostileStage) -> None:
    with patience():
        await stage.box.exec_code(DAEMON)
        await stage.box.run_command(BASH_DAEMON + "true")
        assert (await stage.box.info()).processes > 4
        left = stage.its_processes
        assert len(left) > 4
        await stage.box.kill()
        assert not [process for process in left if process.is_alive]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os._exit(3)", "exited with status 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.closerange(0, 1000)", "Python process"),
        ("import os; os.closerange(3, 1000); __import__('time').sleep(1000)", "Python process"),
        ("import os; os.execv('/bin/true', ['true'])", "exited with status 0"),
    ],
)
async def test_an_interpreter_that_ends_is_replaced_and_its_end_told(stage: HostileStage, code: str, told: str) -> None:
    with patience():
        await stage.box.exec_code("kept = 1")
        done = await stage.box.exec_code(code, timeout=3)
        if done.timed_out:  # what was closed is noticed only at its end
            assert_lost(done, "ExecutionTimeout")
        else:
            assert_lost(done)
            assert told in done.error.value
        await assert_starts_anew(stage)


async def test_an_exit_is_only_an_exception(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.exec_code("kept = 1\nimport sys; sys.exit(3)")
        assert done.error is not None and (done.error.name, done.state) == ("SystemExit", "kept")


@pytest.mark.parametrize(
    "number", ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGSEGV", "SIGPIPE"]
)
async def test_the_first_process_cannot_be_killed_from_inside(stage: HostileStage, number: str) -> None:
    with patience():
        await stage.box.exec_code("kept = 1")
        await tried(stage.box, f"for _ in range(100): attempt(os.kill, 1, signal.{number})")
        done = await stage.box.run_command(f"for n in $(seq 100); do kill -{number[3:]} 1; done; echo there")
        assert done.stdout == "there\n"
        assert await value(stage.box, "kept") == 1


async def test_killing_everything_costs_only_the_interpreter(stage: HostileStage) -> None:
    with patience():
        await stage.box.exec_code("kept = 1")
        done = await stage.box.run_command("kill -9 -1")
        assert done.exit_code in (0, 137)
        await stage.box.exec_code("pass")  # may meet the dead one
        await assert_starts_anew(stage)
        await tried(stage.box, "attempt(os.kill, -1, 9)")
        await assert_starts_anew(stage)


async def test_a_stopped_keeper_does_not_hold_up_the_timeout(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.run_command("kill -STOP $PPID; echo done", timeout=0.5)
        assert done.timed_out and done.exit_code == 137
        await assert_alone(stage)


async def test_the_agent_cannot_be_slowed_to_death(stage: HostileStage) -> None:
    code = """
attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)
attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
"""
    with patience():
        await tried(stage.box, code)
        await stage.box.exec_code(DAEMON.replace("time.sleep(0.01)", "pass"))
        assert await value(stage.box, "1 + 1") == 2


HOLD = """
def hold():
    "Take a process; return whether there was one."
    pid = attempt(os.fork)
    if pid == 0:
        os.execv("/bin/sleep", ["sleep", "1000"])
    return isinstance(pid, int)
"""


async def test_at_the_limit_of_processes_the_sandbox_still_answers_and_leaks_nothing(stage: HostileStage) -> None:
    with patience():
        await tried(stage.box, HOLD + "while hold(): pass")
        for _ in range(1100):  # four descriptors each would be more than the agent may have
            assert "at its limit" in (await stage.box.run_command("true")).stderr
        assert len(stage.its_processes) <= SMALL["processes"] + 2
        await stage.box.put("still.txt", b"here")
        assert await stage.box.get("still.txt") == b"here"
        assert await value(stage.box, "1 + 1") == 2


async def test_what_a_dead_interpreter_left_cannot_keep_the_next_from_starting(stage: HostileStage) -> None:
    greedy = """
if os.fork() == 0:
    while True:  # this one takes the place of its parent, too
        hold()
        time.sleep(0.0001)
while hold():
    pass
time.sleep(0.1)
os.kill(os.getpid(), 9)
"""
    with patience():
        done = await stage.box.exec_code(TRIES + HOLD + greedy)
        assert_lost(done)
        await stage.box.exec_code("1")  # it may have been quicker than they
        assert await value(stage.box, "1 + 1") == 2


async def test_code_cannot_be_taken_by_an_interpreter_that_only_pretends_to_be_idle(stage: HostileStage) -> None:
    forged = """
import json
head = json.dumps({"error": None, "displays": [], "parts": []}).encode()
channel().sendall(struct.pack("<II", len(head), 0) + head)
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
"""
    with patience():
        assert (await stage.box.exec_code(TRIES + forged)).error is None
        done = await stage.box.exec_code("'" + "x" * (4 << 20) + "'", timeout=30)
        assert_lost(done)
        await assert_starts_anew(stage)


async def test_cancelling_the_hubs_call_ends_stubborn_code(stage: HostileStage) -> None:
    with patience():
        with anyio.move_on_after(0.3):
            await stage.box.exec_code(DAEMON + STUBBORN["catches everything"])
        done = await stage.box.exec_code("1")
        assert done.error is None
        await assert_alone(stage)


async def test_a_sandbox_can_be_killed_while_everything_in_it_is_busy(stage: HostileStage) -> None:
    async def ends_lost(code: str) -> None:
        with pytest.raises(SandboxLost, match="killed"):
            await stage.box.exec_code(code)

    with patience():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ends_lost, DAEMON + STUBBORN["catches everything"])
            await eventually(lambda: len(stage.its_processes) > 2)
            await stage.box.kill()
