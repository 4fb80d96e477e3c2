"""An engine takes its options, says why it did not start, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from real_processes import Process, below, eventually

from testbed.engine.server import EngineFailed, EngineOptions, open_engine

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
# Only against hanging: a start takes half a minute, on a busy machine more.
PATIENCE_S = 700
SCHEDULER = """
import os
from pathlib import Path
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

class NotingScheduler(AsyncScheduler):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        Path(os.environ["SCHEDULER_NOTE"]).write_text(str(self.policy))
"""
KILLED = """
import anyio
from testbed.engine.server import open_engine

async def main():
    async with open_engine() as engine:
        print(engine.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def shared_memory(processes: list[Process]) -> set[Path]:
    """Files in /dev/shm that these processes have mapped: nobody but they can remove them."""
    lines = [line for process in processes for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()]
    return {path for line in lines if (path := Path(line.split()[-1])).parent == Path("/dev/shm") and path.exists()}


async def test_options_reach_the_engine_and_it_ends_with_the_block(tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text(SCHEDULER)
    options = EngineOptions(
        name="other",
        blocks=65,
        block_size=64,
        scheduling="priority",
        dev_mode=False,
        scheduler_cls="noting.NotingScheduler",
        python_path=[tmp_path],
        environment={"SCHEDULER_NOTE": str(tmp_path / "note")},
        arguments=["--max-num-seqs=3"],
    )
    with anyio.fail_after(PATIENCE_S):
        async with open_engine(options) as engine, httpx2.AsyncClient(base_url=engine.url, trust_env=False) as http:
            (model,) = (await http.get("/v1/models")).json()["data"]
            assert (model["id"], model["max_model_len"]) == ("other", 64 * 64)
            assert (await http.post("/reset_prefix_cache")).status_code == 404
            assert "priority" in (tmp_path / "note").read_text().lower()
            metrics = (await http.get("/metrics")).text
            assert 'num_gpu_blocks="65"' in metrics and 'block_size="64"' in metrics
            processes = [Process.of(engine.pid), *below(engine.pid)]
            assert len(processes) >= 3 and all(process.is_alive for process in processes)
            folder, memory = engine.log.parent, shared_memory(processes)
            assert folder.exists() and memory
    assert not any(process.is_alive for process in processes)
    assert not folder.exists()
    assert not any(path.exists() for path in memory)


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    others = below(os.getpid())

    async def start() -> None:
        async with open_engine(log=log):
            pytest.fail("it was to be cancelled before")

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            await eventually(lambda: log.exists() and "EngineCore" in log.read_text(), within=PATIENCE_S)
            processes = [process for process in below(os.getpid()) if process not in others]
            tasks.cancel_scope.cancel()
    assert len(processes) >= 3
    assert not any(process.is_alive for process in processes)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder; the engine has sockets in it, and their paths may not be as long as those of `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="te-") as folder:
        yield Path(folder)


async def test_it_ends_when_the_process_with_the_block_is_killed(short_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(short_path)}
    popen = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, env=environment)
    assert popen.stdout is not None
    try:
        with anyio.fail_after(PATIENCE_S):
            pid = int(await anyio.to_thread.run_sync(popen.stdout.readline, abandon_on_cancel=True))
        processes = below(popen.pid)
        assert Process.of(pid) in processes
        memory = shared_memory(processes)
        assert memory and list(short_path.iterdir())
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()
    await eventually(lambda: not any(process.is_alive for process in processes), within=PATIENCE_S)
    assert not any(path.exists() for path in memory)
    # The shim removes the folder at its end, when it is no longer below the killed process.
    await eventually(lambda: not list(short_path.iterdir()), within=PATIENCE_S)


async def test_a_failed_start_says_why() -> None:
    with anyio.fail_after(PATIENCE_S), pytest.raises(EngineFailed, match="--no-such-option"):
        async with open_engine(EngineOptions(arguments=["--no-such-option"])):
            pass
