"""One client in many threads, event loops and processes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from hub_process import HubProcess, echo_server, run_script

import toolhub
from toolhub.client import RemoteTask


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_works_on_either_backend(backend: str, hub_process: HubProcess) -> None:
    async def main() -> str:
        async with toolhub.connect(hub_process.url) as hub, hub.task(servers={"echo": echo_server()}) as task:
            return (await task.call("echo", "echo", {"text": backend})).text

    assert anyio.run(main, backend=backend) == backend


def test_one_task_serves_backend_after_backend(hub_process: HubProcess) -> None:
    task = asyncio.run(toolhub.connect(hub_process.url).open_task(servers={"echo": echo_server()}))
    texts = [anyio.run(_say, task, backend, backend=backend) for backend in ("trio", "asyncio", "trio", "asyncio")]
    assert texts == ["trio", "asyncio", "trio", "asyncio"]
    asyncio.run(task.aclose())


def test_threads_with_loops_of_their_own_share_a_task(hub_process: HubProcess) -> None:
    task = asyncio.run(toolhub.connect(hub_process.url).open_task(servers={"echo": echo_server()}))
    together = threading.Barrier(3)

    def thread(name: str) -> list[str]:
        async def calls() -> list[str]:
            return [await _say(task, f"{name}{number}") for number in range(20)]

        together.wait(60)
        return asyncio.run(calls())

    with ThreadPoolExecutor(3) as threads:
        said = list(threads.map(thread, "abc"))
    assert said == [[f"{name}{number}" for number in range(20)] for name in "abc"]
    asyncio.run(task.aclose())


async def _say(task: RemoteTask, text: str) -> str:
    return (await task.call("echo", "echo", {"text": text})).text


def test_a_forked_child_uses_its_parents_task_with_connections_of_its_own(hub_process: HubProcess) -> None:
    script = """
import asyncio, os, sys, toolhub, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

async def opened():
    server = {"command": sys.argv[2], "args": sys.argv[3:]}
    task = await toolhub.connect(sys.argv[1]).open_task(servers={"echo": server})
    await task.call("echo", "counter")
    return task

async def count():
    return [int((await task.call("echo", "counter")).text) for _ in range(50)]

task = asyncio.run(opened())
reader, writer = os.pipe()
if (child := os.fork()) == 0:
    os.write(writer, repr(asyncio.run(count())).encode())
    sys.exit(0)
mine = asyncio.run(count())
os.waitpid(child, 0)
theirs = eval(os.read(reader, 65536))
assert sorted(mine + theirs) == list(range(2, 102)), (mine, theirs)
print("still", asyncio.run(count())[0])
"""
    server = echo_server()
    assert run_script(script, hub_process.url, server["command"], *server["args"]) == "still 102\n"


def test_a_loop_that_is_gone_leaves_no_warning(hub_process: HubProcess) -> None:
    script = """
import asyncio, gc, sys, toolhub

async def main():
    asyncio.get_running_loop().slow_callback_duration = 3600  # a busy machine is no fault of the client's
    await toolhub.connect(sys.argv[1]).statistics()

for _ in range(3):
    asyncio.run(main())
    gc.collect()
"""
    assert run_script(script, hub_process.url, PYTHONDEVMODE="1") == ""


def test_importing_the_client_imports_no_sdk_and_no_web_server() -> None:
    script = """
import sys, toolhub, toolhub.miroflow
toolhub.connect
print([name for name in ("mcp", "starlette", "uvicorn", "opentelemetry") if name in sys.modules])
"""
    assert run_script(script) == "[]\n"
