"""Code that wants everything: processes, memory, disk, the hub's attention, time."""

from __future__ import annotations

import pytest
from toolhub_sandbox import SandboxLost

from tests.toolhub_sandbox.hostile.hostile_stage import (
    MIB,
    SMALL,
    TRIES,
    HostileStage,
    cheap_for_the_hub,
    patience,
    tried,
    value,
)

pytestmark = pytest.mark.anyio

GIB = 1 << 30
LIMIT = SMALL["processes"]
FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


async def test_a_python_fork_bomb_ends_at_its_timeout(stage: HostileStage) -> None:
    with patience():
        try:
            done = await stage.box.exec_code(FORK_BOMB, timeout=1)
        except SandboxLost as exc:
            assert "faster than they could be ended" in str(exc)
            return
        assert done.error is not None
        if stage.has_cgroup or done.error.name != "MemoryLimit":  # the watch counts what forks share for each of them
            assert done.timed_out and done.error.name == "ExecutionTimeout"
        assert await value(stage.box, "1 + 1") == 2


async def test_a_fork_bomb_stays_below_its_limit_of_processes(stage: HostileStage) -> None:
    with patience():
        born = await tried(
            stage.box,
            """
children = []
while isinstance(pid := attempt(os.fork), int):
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    children.append(pid)
failed = pid
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
failed, len(children)
""",
        )
    assert born[0] == "EAGAIN"
    assert LIMIT - 5 < born[1] <= LIMIT


async def test_a_forked_child_that_reaches_the_end_of_its_cell_does_not_answer_for_its_parent(
    stage: HostileStage,
) -> None:
    with patience():
        assert await value(stage.box, "import os\npid = os.fork()\npid > 0") is True
        assert await value(stage.box, "os.waitpid(pid, 0)[1]") == 0
        assert [await value(stage.box, str(number)) for number in range(20)] == list(range(20))


async def test_a_bash_fork_bomb_in_the_background_ends_with_the_sandbox(stage: HostileStage) -> None:
    with patience():
        await stage.box.run_command("bomb() { bomb | bomb & }; bomb", timeout=2)
        assert len(stage.its_processes) < LIMIT + 10
        await stage.box.kill()
    # that nothing is left of it, the fixture checks


async def test_a_bash_fork_bomb_in_the_foreground_ends_at_its_timeout(stage: HostileStage) -> None:
    with patience():
        try:
            done = await stage.box.run_command("bomb() { bomb | bomb; }; while :; do bomb; done", timeout=1)
        except SandboxLost as exc:
            assert "faster than they could be ended" in str(exc)
            return
        # Bash gives up by itself when it cannot fork.
        assert done.timed_out or done.exit_code != 0
        assert await value(stage.box, "1 + 1") == 2


async def test_one_process_cannot_have_more_than_the_memory_limit(stage: HostileStage) -> None:
    with patience():
        done = await stage.box.exec_code("kept = []\nwhile True: kept.append(b'x' * (1 << 20))")
        assert done.error is not None
        assert (
            done.error.name == "MemoryLimit" if stage.has_cgroup else done.error.name in ("MemoryLimit", "MemoryError")
        )
        await stage.box.exec_code("kept = None")
        assert await value(stage.box, "1 + 1") == 2


async def test_many_processes_together_cannot_have_more_than_the_memory_limit(stage: HostileStage) -> None:
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        mine = b"x" * (40 << 20)
        time.sleep(60)
        os._exit(0)
os.waitstatus_to_exitcode(os.wait()[1])
"""
    with patience():
        done = await stage.box.exec_code(code)
    if done.error is None:
        assert done.result == "-9"  # the kernel, or the watch, killed one of them
    else:
        assert done.error.name == "MemoryLimit"


async def test_memory_that_is_shared_counts(stage: HostileStage) -> None:
    code = """
import mmap, time
kept = mmap.mmap(-1, 300 << 20)
for at in range(0, 300 << 20, 4096):
    kept[at] = 1
time.sleep(5)
"""
    with patience():
        done = await stage.box.exec_code(code)
    assert done.error is not None and done.error.name == "MemoryLimit"


async def test_memory_of_no_process_is_bounded_or_cannot_be_had(stage: HostileStage) -> None:
    code = """
kept = []
def fill():
    for _ in range(10):
        kept.append(os.memfd_create("hidden"))
        for _ in range(20):
            os.write(kept[-1], bytes(1 << 20))
attempt(fill), call({"x86_64": 29, "aarch64": 194}[os.uname().machine], 0, 300 << 20, 0o1600) if not kept else ""
"""
    with patience():
        try:
            if stage.has_cgroup:
                done = await stage.box.exec_code(TRIES + code)
                assert done.error is not None and done.error.name == "MemoryLimit"
            else:
                assert await tried(stage.box, code) == ("ENOSYS", "ENOSYS")
        except SandboxLost:
            assert stage.has_cgroup


@pytest.mark.parametrize(
    ("folder", "size"),
    [("/home/user", SMALL["home_bytes"]), ("/tmp", SMALL["tmp_bytes"]), ("/dev/shm", 64 * MIB)],
)
async def test_a_folder_is_full_at_its_limit(stage: HostileStage, folder: str, size: int) -> None:
    if folder == "/dev/shm" and not stage.has_cgroup:
        size = SMALL["memory_bytes"] // 8
    code = f"""
def fill():
    with open("{folder}/big", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
attempt(fill), os.path.getsize("{folder}/big")
"""
    with patience():
        why, written = await tried(stage.box, code)
        assert why == "ENOSPC"
        assert size - 2 * MIB <= written <= size
        await value(stage.box, f"import os; os.remove('{folder}/big')")


async def test_files_that_are_memory_are_bounded_by_the_memory_limit_too(stage: HostileStage) -> None:
    code = """
def fill(folder):
    with open(f"{folder}/big", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
[attempt(fill, folder) for folder in ("/dev/shm", "/home/user", "/tmp")]
"""
    with patience():
        try:
            done = await stage.box.exec_code(TRIES + code)
        except SandboxLost:
            assert stage.has_cgroup
            return
        if stage.has_cgroup:
            assert done.error is not None and done.error.name == "MemoryLimit"
        else:
            assert done.result == "['ENOSPC', 'ENOSPC', 'ENOSPC']"


async def test_a_million_small_files_are_too_many(stage: HostileStage) -> None:
    code = """
def fill():
    for number in range(1_000_000):
        os.close(os.open(f"/tmp/{number}", os.O_CREAT))
attempt(fill)
"""
    with patience():
        try:
            done = await stage.box.exec_code(TRIES + code)
        except SandboxLost:
            assert stage.has_cgroup
            return
    assert done.result == "'ENOSPC'" or (done.error is not None and done.error.name == "MemoryLimit")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_gibibyte_of_prints_costs_the_hub_nothing(stage: HostileStage, stream: str) -> None:
    code = f"import sys\nline = 'x' * 32767\nfor _ in range(1 << 15): print(line, file=sys.{stream})"
    with patience(), cheap_for_the_hub():
        done = await stage.box.exec_code(code)
    kept = getattr(done, stream)
    assert done.error is None
    assert len(kept) == SMALL["output_bytes"]
    assert done.dropped_bytes == GIB - len(kept)


@pytest.mark.parametrize("redirection", ["", ">&2"])
async def test_a_gibibyte_from_a_command_costs_the_hub_nothing(stage: HostileStage, redirection: str) -> None:
    with patience(), cheap_for_the_hub():
        done = await stage.box.run_command(f"head -c {GIB} /dev/zero {redirection}")
    assert done.exit_code == 0
    assert len(done.stdout + done.stderr) == SMALL["output_bytes"]
    assert done.dropped_bytes == GIB - SMALL["output_bytes"]


async def test_a_line_without_end_ends_at_the_timeout(stage: HostileStage) -> None:
    with patience(), cheap_for_the_hub():
        done = await stage.box.run_command("yes | tr -d '\\n'", timeout=1)
        assert done.timed_out and done.dropped_bytes > MIB
        endless = await stage.box.exec_code("while True: print(end='x' * 65536)", timeout=1)
    assert endless.timed_out and endless.state == "kept"
    assert len(endless.stdout) == SMALL["output_bytes"]


async def test_output_after_the_end_does_not_reach_the_next_execution_unbounded(stage: HostileStage) -> None:
    code = """
import threading
def flood():
    while True:
        print("x" * 9999)
threading.Thread(target=flood, daemon=True).start()
"""
    with patience(), cheap_for_the_hub():
        await stage.box.exec_code(code)
        done = await stage.box.exec_code("import time; time.sleep(0.5)")
    assert len(done.stdout) <= SMALL["output_bytes"]


async def test_a_million_displays_cost_the_hub_nothing(stage: HostileStage) -> None:
    code = "for number in range(100_000): display(number)\n'end'"
    with patience(), cheap_for_the_hub():
        done = await stage.box.exec_code(code)
    assert done.error is None and done.result == "'end'"
    assert len(done.displays) < 1100
    assert "not shown" in (done.displays[-1].text or "")


async def test_a_result_of_a_gigabyte_is_not_shown(stage: HostileStage) -> None:
    with patience(), cheap_for_the_hub(most=40 * MIB):
        done = await stage.box.exec_code("'x' * (20 << 20)")
    assert (done.result or "").startswith("[not shown")
