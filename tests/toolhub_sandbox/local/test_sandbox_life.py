"""The life of a sandbox: looked at, killed, lost."""

from __future__ import annotations

import os
import signal

import anyio
import psutil
import pytest
from running import Running
from toolhub_sandbox import SandboxLost

from tests.toolhub_sandbox.local.sandbox_stage import patience, processes

pytestmark = pytest.mark.anyio

FOREVER = "open('begun', 'w').close()\nwhile True: pass"


async def begun(sandbox):
    with patience():
        await sandbox.run_command("until [ -e begun ]; do sleep 0.01; done")


async def test_a_sandbox_knows_its_name_and_its_profile(sandbox):
    assert (sandbox.profile, sandbox.is_alive) == ("bare", True)
    assert repr(sandbox) == f"<LocalSandbox {sandbox.id} bare alive executions=0>"


async def test_info_is_plausible(sandbox):
    with patience():
        before = await sandbox.info()
        await sandbox.exec_code(
            "x = bytearray(50 << 20)\nfrom time import process_time as now\nend = now() + 0.1\nwhile now() < end: pass"
        )
        after = await sandbox.info()
    assert (before.id, before.profile, before.backend) == (sandbox.id, "bare", "local")
    assert "namespaces" in before.isolation
    assert (before.executions, after.executions) == (0, 1)
    assert 0 <= after.idle_s < after.age_s < 60
    assert after.cpu_s - before.cpu_s >= 0.1
    assert after.rss_bytes - before.rss_bytes > 40 << 20
    assert (before.processes, before.lease_s) == (2, None), "the agent and the interpreter"


async def test_killing_ends_every_process_and_may_be_repeated(sandbox):
    with patience():
        await sandbox.exec_code("1")
    before = processes()
    with patience():
        await sandbox.exec_code(
            "import subprocess\nfor _ in range(3): p = subprocess.Popen(['sleep', '1234'], start_new_session=True)"
        )
        inside = processes() - before
        assert len(inside) == 3
        await sandbox.kill()
        await sandbox.kill()
        await sandbox.wait_closed()
    assert not inside & processes()
    assert not sandbox.is_alive


async def test_killing_at_the_same_time_is_one_kill(sandbox):
    with patience():
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(sandbox.kill)
            tasks.start_soon(sandbox.wait_closed)
    assert not sandbox.is_alive


async def test_a_kill_that_is_cancelled_is_done_all_the_same(sandbox):
    with anyio.move_on_after(0):
        await sandbox.kill()
    with patience():
        await sandbox.wait_closed()
    assert not sandbox.is_alive


@pytest.mark.parametrize(
    "use",
    [
        lambda sandbox: sandbox.exec_code("1"),
        lambda sandbox: sandbox.run_command("true"),
        lambda sandbox: sandbox.put("f", b"x"),
        lambda sandbox: sandbox.get("f"),
        lambda sandbox: anext(sandbox.read("f")),
        lambda sandbox: sandbox.interrupt(),
        lambda sandbox: sandbox.info(),
    ],
    ids=["exec_code", "run_command", "put", "get", "read", "interrupt", "info"],
)
async def test_every_method_of_a_killed_sandbox_says_that_it_is_lost(sandbox, use):
    with patience():
        await sandbox.kill()
        with pytest.raises(SandboxLost, match="gone with all that it kept: it was killed"):
            await use(sandbox)


async def test_whoever_waits_is_told_when_a_sandbox_is_killed(sandbox):
    async with anyio.create_task_group() as tasks:
        calls = [Running(tasks, sandbox.exec_code, FOREVER)]
        await begun(sandbox)
        calls.append(Running(tasks, sandbox.exec_code, "'never'"))
        calls.append(Running(tasks, sandbox.run_command, "sleep 1234"))
        closed = Running(tasks, sandbox.wait_closed)
        await anyio.wait_all_tasks_blocked()
        assert not closed.is_done
        with patience():
            await sandbox.kill()
        outcomes = [await call.wait() for call in calls]
        await closed.wait()
    assert [type(outcome) for outcome in outcomes] == [SandboxLost] * 3


async def test_a_sandbox_whose_first_process_dies_is_lost_and_nothing_of_it_stays(scope):
    before = processes()
    with patience():
        sandbox = await scope.create()
        await sandbox.exec_code("import subprocess; p = subprocess.Popen(['sleep', '1234'])")
        inside = processes() - before
        async with anyio.create_task_group() as tasks:
            running = Running(tasks, sandbox.exec_code, FOREVER)
            await begun(sandbox)
            os.kill(min(inside), signal.SIGKILL)
            assert isinstance(await running.wait(), SandboxLost)
        await sandbox.wait_closed()
    assert not inside & processes()
    assert (dict(scope.sandboxes), scope.count) == ({}, 0)


async def test_when_the_zygote_dies_its_sandboxes_are_lost_and_the_next_has_a_new_one(scope):
    with patience():
        sandbox = await scope.create("hasty")
        zygotes = [child for child in psutil.Process().children() if child.name() == "sbx-launcher"]
        for launcher in zygotes:
            for zygote in launcher.children():
                zygote.kill()
        await sandbox.wait_closed()
        with pytest.raises(SandboxLost):
            await sandbox.info()
        after = await scope.create("hasty")
        assert (await after.exec_code("1 + 1")).result == "2"


async def test_the_first_answer_needs_no_second_process_of_the_hub(sandbox):
    with patience():
        assert (await sandbox.exec_code("import os; os.getpid(), os.getppid()")).result == "(2, 1)"
