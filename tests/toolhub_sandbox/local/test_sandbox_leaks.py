"""What is left when everything has ended: nothing."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import anyio
import pytest
from running import Running
from toolhub_sandbox import Sandboxes
from toolhub_sandbox.local import cgroups

from tests.toolhub_sandbox.local.sandbox_stage import PATIENCE_S, descriptors, patience, processes, settings

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["asyncio", "uvloop", "trio"])
def anyio_backend(request):
    return ("asyncio", {"use_uvloop": request.param == "uvloop"}) if request.param != "trio" else "trio"


def groups() -> set[str]:
    """The cgroups of this process's hubs."""
    own = {folder for kinds in cgroups._own_groups().values() for folder in kinds.values()}
    return {str(found) for folder in own for found in folder.glob(f"{cgroups.PREFIX}{os.getpid()}-*/*")} | {
        str(found) for folder in own for found in folder.glob(f"{cgroups.PREFIX}{os.getpid()}-*")
    }


def more_than(before: tuple[Any, ...]) -> list[Any]:
    """What there is beside what there was. A process that was about to end before may be gone."""
    found: tuple[Any, ...] = descriptors(), processes(), groups()
    return [now - then for now, then in zip(found, before, strict=True) if now - then]


@pytest.fixture
async def nothing_left(anyio_backend, temporary):
    """Compare what there is before a test and after it."""
    await anyio.to_thread.run_sync(lambda: None)  # threads of the event loop stay, with what they have open
    before: tuple[Any, ...] = descriptors(), processes(), groups(), set(temporary.iterdir())
    yield
    after: tuple[Any, ...] = descriptors(), processes(), groups(), set(temporary.iterdir())
    assert [now - then for now, then in zip(after, before, strict=True)] == [Counter(), set(), set(), set()]


def quick(**keys):
    return Sandboxes(settings(profiles={"bare": {"pool": 2}}, **keys))


@pytest.mark.usefixtures("nothing_left")
async def test_leaving_leaves_nothing():
    async with quick() as sandboxes:
        scope = sandboxes.for_owner("t")
        with patience():
            for _ in range(3):
                sandbox = await scope.create()
                await sandbox.exec_code(
                    "import subprocess; p = subprocess.Popen(['sleep', '1234'], start_new_session=True)"
                )
                await sandbox.run_command("setsid sleep 1234 &")
                await sandbox.put("file", b"data")


@pytest.mark.usefixtures("nothing_left")
async def test_leaving_in_the_middle_of_everything_leaves_nothing():
    async with anyio.create_task_group() as tasks:
        async with quick() as sandboxes:
            scope = sandboxes.for_owner("t")
            with patience():
                sandbox = await scope.create()
            calls = [
                Running(tasks, sandbox.exec_code, "while True: pass"),
                Running(tasks, sandbox.run_command, "sleep 1234"),
                Running(tasks, sandbox.put, "big", b"x" * (16 << 20)),
                *(Running(tasks, scope.create) for _ in range(5)),
            ]
            await anyio.lowlevel.checkpoint()
        for call in calls:
            await call.wait()


@pytest.mark.usefixtures("nothing_left")
async def test_a_failure_in_the_block_leaves_nothing():
    with pytest.raises(ZeroDivisionError):
        async with quick() as sandboxes:
            with patience():
                await sandboxes.for_owner("t").create()
            raise ZeroDivisionError


@pytest.mark.usefixtures("nothing_left")
async def test_cancelling_the_block_leaves_nothing():
    with anyio.CancelScope() as scope:
        async with quick() as sandboxes:
            with patience():
                sandbox = await sandboxes.for_owner("t").create()
            scope.cancel()
            await sandbox.exec_code("while True: pass")


@pytest.mark.usefixtures("nothing_left")
async def test_the_end_of_one_sandbox_leaves_nothing_of_it():
    async with Sandboxes(settings()) as sandboxes:
        scope = sandboxes.for_owner("t")
        with patience():
            await (await scope.create()).kill()
            before: tuple[Any, ...] = descriptors(), processes(), groups()
            for _ in range(5):
                sandbox = await scope.create()
                await sandbox.exec_code("1")
                await sandbox.kill()
        assert more_than(before) == []


@pytest.mark.usefixtures("nothing_left")
async def test_a_create_that_is_cancelled_at_any_point_leaves_nothing():
    async with Sandboxes(settings()) as sandboxes:
        scope = sandboxes.for_owner("t")
        with patience():
            await (await scope.create()).kill()
        before: tuple[Any, ...] = descriptors(), processes(), groups()
        for steps in range(40):
            async with anyio.create_task_group() as tasks:
                coming = Running(tasks, scope.create)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                coming.cancel()
                made = await coming.wait()
            if made is not None:
                with patience():
                    await made.kill()
            assert scope.count == 0
        left: list[Any] = []
        with anyio.move_on_after(PATIENCE_S):
            # A birth that was given up may be on its way, and another one may still begin: only one look counts.
            while left := more_than(before):
                await anyio.sleep(0.01)
        assert left == []


@pytest.mark.usefixtures("nothing_left")
async def test_a_first_create_that_is_cancelled_at_any_point_leaves_nothing():
    for steps in (0, 1, 2, 3, 5, 8, 13, 21):
        async with Sandboxes(settings()) as sandboxes:
            scope = sandboxes.for_owner("t")
            async with anyio.create_task_group() as tasks:
                coming = Running(tasks, scope.create)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                coming.cancel()
                await coming.wait()
            with patience():
                assert (await (await scope.create()).exec_code("1")).result == "1"


@pytest.mark.usefixtures("nothing_left")
async def test_the_loop_serves_code_commands_and_files():
    async with quick() as sandboxes:
        with patience():
            sandbox = await sandboxes.for_owner("t").create()
            assert (await sandbox.exec_code("x = 1; x + 1")).result == "2"
            assert (await sandbox.exec_code("while True: pass", timeout=0.2)).timed_out
            assert (await sandbox.run_command("echo $((6 * 7)); exit 3")).exit_code == 3
            await sandbox.put("big", b"x" * (5 << 20))
            assert len(await sandbox.get("big")) == 5 << 20
            async with anyio.create_task_group() as tasks:
                running = Running(tasks, sandbox.exec_code, "open('begun', 'w').close()\nwhile True: pass")
                await sandbox.run_command("until [ -e begun ]; do sleep 0.01; done")
                running.cancel()
                await running.wait()
            assert (await sandbox.exec_code("x")).result == "1"
            await sandbox.kill()
