"""Work in other processes: whatever it does, it ends in time, within its memory, and with its hub."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
import web_work
from toolhub_servers.confined import process as _confined
from toolhub_servers.scrape.conversion import Converted, convert
from toolhub_servers.web.errors import ResourceLimitExceeded
from toolhub_servers.web.workers import offload

pytestmark = pytest.mark.anyio

# A worker has to start first: an interpreter, and what the main module imports.
PATIENCE_S = 30.0
MODULE = sys.modules[offload.__module__]  # the function has the same name
HERE = Path(web_work.__file__).parent


async def test_work_is_done_in_another_process_that_is_kept():
    with anyio.fail_after(PATIENCE_S):
        assert await offload(web_work.count, returns=int) + 1 == await offload(web_work.count, returns=int)
    assert web_work.calls == 0


@pytest.mark.parametrize("work", [web_work.spin, web_work.spin_in_c])
async def test_work_that_does_not_end_is_killed(work):
    with anyio.fail_after(PATIENCE_S):
        await offload(web_work.count, returns=int)
        before = children()
        with pytest.raises(ResourceLimitExceeded, match=f"^{work.__name__} was not done within 0.1 s$"):
            await offload(work, returns=type(None), timeout=0.1)
        assert len(children()) == len(before) - 2  # the launcher and its child


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_work_that_does_not_end_is_killed_even_if_the_hub_does_not_look_at_its_clock(monkeypatch):
    monkeypatch.setattr(_confined, "GRACE_S", -99.5)
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(ResourceLimitExceeded, match="ended the process that it ran in"):
            await offload(web_work.spin_in_c, returns=type(None), timeout=100)


async def test_work_that_takes_too_much_memory_gets_an_error_and_the_next_does_not():
    with anyio.fail_after(PATIENCE_S):
        calls = await offload(web_work.count, returns=int)
        with pytest.raises(ResourceLimitExceeded, match="^hog needed more than 64 MiB of memory$"):
            await offload(web_work.hog, 200 << 20, returns=int, memory_bytes=64 << 20)
        assert await offload(web_work.hog, 200 << 20, returns=int) == 200 << 20
        assert await offload(web_work.count, returns=int) == calls + 1


async def test_a_worker_that_dies_costs_only_its_own_work():
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(
            ResourceLimitExceeded, match="^die ended the process that it ran in: it was ended by SIGSEGV$"
        ):
            await offload(web_work.die, returns=type(None))
        assert await offload(web_work.hog, 1, returns=int) == 1


async def test_what_libraries_print_disturbs_nobody():
    with anyio.fail_after(PATIENCE_S):
        await offload(web_work.print_as_c_does, returns=type(None))
        assert await offload(web_work.hog, 1, returns=int) == 1


async def test_an_exception_that_is_expected_is_raised_and_any_other_is_a_runtime_error():
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(ValueError, match="^not a page$"):
            await offload(web_work.fail, returns=str, raises=(ValueError,))
        with pytest.raises(RuntimeError, match="^fail raised ValueError: not a page$"):
            await offload(web_work.fail, returns=str)


async def test_what_makes_text_of_pages_runs_in_a_worker():
    with anyio.fail_after(PATIENCE_S):
        page = b"<html><title>Lamp</title><body><p>The lamp is lit."
        done = await offload(convert, page, "text/html", "http://a.example/", 100, returns=Converted)
    assert (done.title, done.text) == ("Lamp", "The lamp is lit.")


async def test_a_worker_has_nothing_of_the_hubs_environment(monkeypatch):
    monkeypatch.setenv("TOOLHUB_TEST_SECRET", "secret")
    with anyio.fail_after(PATIENCE_S):
        found = await offload(web_work.environment, returns=dict[str, str])
    assert set(found) <= {"LC_CTYPE"}  # Python sets it


async def test_a_worker_has_no_network():
    with anyio.fail_after(PATIENCE_S):
        for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
            assert await offload(web_work.refused_socket, int(family), returns=bool)


async def test_a_worker_starts_no_program_and_no_process():
    with anyio.fail_after(PATIENCE_S):
        assert await offload(web_work.refused_processes, returns=list[str]) == ["fork", "exec"]


async def test_a_worker_is_never_root_and_has_no_capabilities():
    with anyio.fail_after(PATIENCE_S):
        ids, capabilities = await offload(web_work.identity, returns=tuple[list[int], str])
    assert 0 not in ids and int(capabilities, 16) == 0


async def test_a_worker_sees_no_file_of_the_host_but_code(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    with anyio.fail_after(PATIENCE_S):
        for path in (str(secret), "/etc/shadow", "/etc/hostname"):
            with pytest.raises(RuntimeError, match="FileNotFoundError"):
                await offload(web_work.read, path, returns=str)


async def test_a_worker_writes_no_file():
    with anyio.fail_after(PATIENCE_S):
        for folder in ("/tmp", "/home/user", str(HERE)):
            with pytest.raises(RuntimeError, match="OSError|PermissionError"):
                await offload(web_work.write, f"{folder}/file", returns=str)


async def test_a_worker_that_was_taken_over_cannot_make_the_hub_run_its_code(tmp_path):
    """What it sends in place of an answer is refused, whatever pickle would make of it."""
    proof = tmp_path / "proof"
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(ResourceLimitExceeded, match="ended the process that it ran in"):
            await offload(web_work.answer_with_a_pickle, str(proof), returns=str)
        with pytest.raises(ResourceLimitExceeded, match="returned a result of another type"):
            await offload(web_work.count, returns=str)
        with pytest.raises(ResourceLimitExceeded, match="ended the process that it ran in"):
            await offload(web_work.answer_without_end, returns=str)
    assert not proof.exists()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_there_are_no_more_workers_than_cores(monkeypatch):
    monkeypatch.setattr(MODULE, "_cores", lambda: 2)
    spans = []

    async def work() -> None:
        spans.append(await offload(web_work.span, returns=tuple[float, float]))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as working:
            for _ in range(5):
                working.start_soon(work)
    assert max(sum(start <= moment <= end for start, end in spans) for moment, _ in spans) <= 2


async def test_work_that_nobody_waits_for_is_ended():
    with anyio.fail_after(PATIENCE_S):
        await offload(web_work.count, returns=int)
        used = {child: child.cpu_times().user for child in children()}
        async with anyio.create_task_group() as working:
            working.start_soon(partial(offload, web_work.spin, returns=type(None)))
            worker = await wait_until(lambda: next((c for c in children() if spins(c, used.get(c, 0.0))), None))
            working.cancel_scope.cancel()
        await wait_until(lambda: worker not in children())


HUB = """
import ast, sys, anyio, web_work
from toolhub_servers.confined import process as _confined
from toolhub_servers.web.workers import offload
async def main():
    await offload(web_work.spin_in_c, returns=type(None))
if __name__ == "__main__":
    backend, options = ast.literal_eval(sys.argv[1])
    anyio.run(main, backend=backend, backend_options=options)
"""


async def test_a_worker_dies_with_its_hub_even_inside_a_c_function(tmp_path, anyio_backend):
    program = tmp_path / "hub.py"
    program.write_text(HUB)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    with subprocess.Popen([sys.executable, program, repr(anyio_backend)], env=environment) as hub:
        worker = await wait_until(lambda: next(filter(spins, children(hub.pid)), None))
        both = children(hub.pid)
        assert worker in both and len(both) == 2
        os.kill(hub.pid, signal.SIGKILL)
        hub.wait()
    await wait_until(lambda: not any(child.is_running() for child in both))


def children(pid=None):
    return psutil.Process(pid).children(recursive=True)


def spins(process, before=0.0):
    """Whether it has used half a second of a CPU since then, which starting does not take."""
    try:
        return process.cpu_times().user > before + 0.5
    except psutil.NoSuchProcess:
        return False


async def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        await anyio.sleep(0.01)
    return found
