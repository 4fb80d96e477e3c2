"""Work in other processes: whatever it does, it ends in time, within its memory, and with its hub."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import psutil
import pytest
import web_work
from toolhub_servers.web import TooCostly, offload

pytestmark = pytest.mark.anyio

# A worker has to start first: an interpreter, and what the main module imports.
PATIENCE_S = 30.0
MODULE = sys.modules[offload.__module__]  # the function has the same name
HERE = Path(__file__).parent


async def test_work_is_done_in_another_process_that_is_kept():
    with anyio.fail_after(PATIENCE_S):
        first = await offload(web_work.where)
        assert first != os.getpid()
        assert await offload(web_work.where) == first


@pytest.mark.parametrize("work", [web_work.spin, web_work.spin_in_c])
async def test_work_that_does_not_end_is_killed(work):
    with anyio.fail_after(PATIENCE_S):
        worker = await offload(web_work.where)
        with pytest.raises(TooCostly, match=f"^{work.__name__} was not done within 0.1 s$"):
            await offload(work, timeout=0.1)
        assert not psutil.pid_exists(worker)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_kernel_ends_work_that_has_used_up_its_time(monkeypatch):
    """The hub may be too busy to look at its clock."""
    monkeypatch.setattr(MODULE, "_CPU_GRACE_S", -99)
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(TooCostly, match="took the process down"):
            await offload(web_work.spin_in_c, timeout=100)


async def test_work_that_takes_too_much_memory_gets_an_error_and_the_next_does_not():
    with anyio.fail_after(PATIENCE_S):
        worker = await offload(web_work.where)
        with pytest.raises(TooCostly, match="^hog needed more than 64 MiB of memory$"):
            await offload(web_work.hog, 200 << 20, memory_bytes=64 << 20)
        assert await offload(web_work.hog, 200 << 20) == 200 << 20
        assert await offload(web_work.where) == worker


async def test_a_worker_that_dies_costs_only_its_own_work():
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(TooCostly, match="^die took the process down that it ran in$"):
            await offload(web_work.die)
        assert await offload(web_work.hog, 1) == 1


async def test_what_libraries_print_disturbs_nobody():
    with anyio.fail_after(PATIENCE_S):
        await offload(web_work.print_as_c_does)
        assert await offload(web_work.hog, 1) == 1


async def test_what_the_work_raises_is_raised():
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(ValueError, match="not a page"):
            await offload(web_work.fail)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_there_are_no_more_workers_than_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(MODULE, "_cores", lambda: 2)
    met = []

    async def work() -> None:
        met.append(await offload(web_work.meet, str(tmp_path), 2))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as working:
            for _ in range(5):
                working.start_soon(work)
    assert max(met) == 2


HUB = """
import ast, sys, anyio, web_work
from toolhub_servers.web import offload
if __name__ == "__main__":
    backend, options = ast.literal_eval(sys.argv[2])
    anyio.run(offload, web_work.say_where_and_spin, sys.argv[1], backend=backend, backend_options=options)
"""


async def test_a_worker_dies_with_its_hub_even_inside_a_c_function(tmp_path, anyio_backend):
    told, program = tmp_path / "pid", tmp_path / "hub.py"
    program.write_text(HUB)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    with subprocess.Popen([sys.executable, program, told, repr(anyio_backend)], env=environment) as hub:
        worker = psutil.Process(int(await wait_until(lambda: told.exists() and told.read_text())))
        os.kill(hub.pid, signal.SIGKILL)
        hub.wait()
    await wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


async def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        await anyio.sleep(0.01)
    return found
