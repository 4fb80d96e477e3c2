"""The other two backends on this machine: `subprocess` limits and cleans up but does not isolate; `bwrap` does all."""

from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from real_processes import eventually
from toolhub_sandbox import Sandbox, Sandboxes, SandboxLost

from tests.toolhub_sandbox.hostile.hostile_hub import LINGERING, hub_process
from tests.toolhub_sandbox.hostile.hostile_stage import (
    MIB,
    SMALL,
    TRIES,
    cheap_for_the_hub,
    patience,
    processes,
    settings,
    tried,
    value,
)
from tests.toolhub_sandbox.hostile.test_hostile_bombs import FORK_BOMB
from tests.toolhub_sandbox.hostile.test_hostile_hub_death import (
    OTHER_PYTHON,
    SYSTEM_PYTHON,
    assert_next_hub_sweeps,
    temporary_folders,
)
from tests.toolhub_sandbox.hostile.test_hostile_processes import BASH_DAEMON, DAEMON
from tests.toolhub_sandbox.hostile.test_hostile_uids import HAS_UIDS, uid_outside

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def limited(anyio_backend: object) -> AsyncIterator[Sandboxes]:
    async with Sandboxes(settings(backend="subprocess", **OTHER_PYTHON)) as sandboxes:
        yield sandboxes


async def pair(sandboxes: Sandboxes) -> tuple[Sandbox, Sandbox]:
    scope = sandboxes.for_owner("t")
    box, neighbour = await scope.create(), await scope.create()
    assert await value(neighbour, "kept = 41\nkept + 1") == 42
    return box, neighbour


async def test_the_subprocess_backend_says_that_it_does_not_isolate(limited: Sandboxes) -> None:
    with patience():
        isolation = await limited.isolation()
    assert not isolation.is_secure and any("no isolation" in text for text in isolation.weaker)


async def test_without_isolation_limits_hold_and_nothing_is_left_after_kill(limited: Sandboxes) -> None:
    with patience(), cheap_for_the_hub():
        before, folders = processes(), temporary_folders()
        box, neighbour = await pair(limited)
        done = await box.exec_code("kept = []\nwhile True: kept.append(b'x' * (1 << 20))")
        assert done.error is not None and done.error.name in ("MemoryLimit", "MemoryError")
        flood = await box.run_command("head -c 200000000 /dev/zero")
        assert len(flood.stdout) == SMALL["output_bytes"]
        await box.exec_code(DAEMON)
        await box.run_command(BASH_DAEMON + "true")
        await box.put("x", b"x")
        await box.kill()
        assert await value(neighbour, "kept + 1") == 42
        await neighbour.kill()
        await eventually(lambda: len(processes() - before) <= 2)  # launcher and zygote, if these were the first
        assert temporary_folders() == folders


async def test_without_isolation_a_timeout_ends_daemons(limited: Sandboxes) -> None:
    with patience():
        box, neighbour = await pair(limited)
        done = await box.exec_code(DAEMON + LINGERING, timeout=0.5)
        assert done.timed_out and done.state == "lost"
        command = await box.run_command(BASH_DAEMON + "sleep 1000", timeout=0.5)
        assert command.timed_out
        assert (await box.info()).processes == 1  # a new interpreter begins with the next code
        await box.kill()
        assert await value(neighbour, "kept + 1") == 42
        await neighbour.kill()


async def test_without_isolation_a_fork_bomb_ends(limited: Sandboxes) -> None:
    with patience():
        before = processes()
        box, neighbour = await pair(limited)
        try:
            await box.exec_code(FORK_BOMB, timeout=1)
        except SandboxLost:
            pass
        await box.kill()
        await eventually(lambda: len(processes() - before) <= 4)
        assert await value(neighbour, "kept + 1") == 42
        await neighbour.kill()


async def test_without_isolation_killing_the_agent_ends_the_sandbox_and_all_in_it(limited: Sandboxes) -> None:
    with patience():
        box, neighbour = await pair(limited)
        before = processes()
        with pytest.raises(SandboxLost):
            await box.exec_code(TRIES + DAEMON + "os.kill(os.getppid(), 9)\ntime.sleep(100)")
        await box.wait_closed()
        await eventually(lambda: len(processes()) < len(before))
        assert await value(neighbour, "kept + 1") == 42
        await neighbour.kill()


# --- bwrap ------------------------------------------------------------------------------------------------------------


def can_bwrap() -> str | None:
    """Why there is no bubblewrap to test; None if there is."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    if not Path(SYSTEM_PYTHON).exists():
        return f"there is no {SYSTEM_PYTHON}"
    return None


needs_bwrap = pytest.mark.skipif(can_bwrap() is not None, reason=str(can_bwrap()))


@pytest.fixture(scope="module")
async def wrapped(anyio_backend: object) -> AsyncIterator[Sandboxes]:
    async with Sandboxes(settings(backend="bwrap", python=SYSTEM_PYTHON)) as sandboxes:
        yield sandboxes


@needs_bwrap
async def test_bubblewrap_gives_namespaces_and_takes_capabilities(wrapped: Sandboxes, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    with patience(), socket.create_server(("127.0.0.1", 0)) as listener:
        box, neighbour = await pair(wrapped)
        told = await tried(
            box,
            f"""
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
{{
    "capabilities": {{int(text, 16) for key, text in status.items() if key.startswith("Cap")}},
    "flags": (status["NoNewPrivs"], status["Seccomp"]),
    "pids": sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit())[:3],
    "loopback": attempt(socket.create_connection, ("127.0.0.1", {listener.getsockname()[1]}), 3),
    "host": [path for path in ("{secret}", "/etc/shadow", "/root/.ssh", "/var/log", "/sys") if os.path.exists(path)],
    "first": [attempt(os.kill, 1, 9), attempt(open, "/proc/1/environ"), attempt(os.readlink, "/proc/1/cwd")],
    "unshare": call(272 if os.uname().machine == "x86_64" else 97, 0x10000000),
    "hostname": socket.gethostname(),
    "write": [attempt(os.open, path, os.O_CREAT) for path in ("/usr/evil", "/evil", "/etc/evil", "/dev/evil")],
    "environment": [key for key in os.environ if "SECRET" in key or "TOKEN" in key],
}}
""",
        )
        assert told["capabilities"] == {0}
        assert told["flags"][0] == "1" and told["flags"][1] == "2"
        assert told["pids"][0] == 1 and len(told["pids"]) <= 3
        assert told["loopback"] == "ECONNREFUSED"
        assert told["host"] == [] and told["environment"] == []
        assert told["first"][0] is None and set(told["first"][1:]) <= {"EACCES", "EPERM"}
        assert told["unshare"] == "EPERM"
        assert told["hostname"] == "sandbox"
        assert set(told["write"]) <= {"EROFS", "EACCES"}
        assert await value(neighbour, "kept + 1") == 42
        await box.kill()
        await neighbour.kill()


@needs_bwrap
@pytest.mark.parametrize(
    ("folder", "size"), [("/home/user", SMALL["home_bytes"]), ("/tmp", SMALL["tmp_bytes"]), ("/dev/shm", 64 * MIB)]
)
async def test_in_bubblewrap_a_folder_is_full_at_its_limit(wrapped: Sandboxes, folder: str, size: int) -> None:
    if folder == "/dev/shm" and not (await wrapped.isolation()).limits.startswith("cgroup"):
        size = SMALL["memory_bytes"] // 8
    code = f"""
def fill():
    with open("{folder}/big", "wb") as file:
        while file.tell() < 200 << 20:
            file.write(bytes(1 << 20))
attempt(fill), os.path.getsize("{folder}/big")
"""
    with patience():
        box, neighbour = await pair(wrapped)
        why, written = await tried(box, code)
        assert why == "ENOSPC"
        assert size - 2 * MIB <= written <= size
        assert await value(neighbour, "kept + 1") == 42
        await box.kill()
        await neighbour.kill()


@needs_bwrap
async def test_in_bubblewrap_bombs_end_and_daemons_die_with_the_sandbox(wrapped: Sandboxes) -> None:
    with patience():
        before = processes()
        box, neighbour = await pair(wrapped)
        done = await box.exec_code("kept = []\nwhile True: kept.append(b'x' * (1 << 20))")
        assert done.error is not None and done.error.name in ("MemoryLimit", "MemoryError")
        await box.exec_code(DAEMON)
        await box.run_command(BASH_DAEMON + "true")
        await box.kill()
        assert await value(neighbour, "kept + 1") == 42
        await neighbour.kill()
        await eventually(lambda: processes() <= before)


@needs_bwrap
async def test_in_bubblewrap_every_sandbox_of_a_root_hub_has_a_uid_of_its_own(wrapped: Sandboxes) -> None:
    with patience():
        box, neighbour = await pair(wrapped)
        uids = {uid_outside(each) for each in (box, neighbour)}
        told = await tried(
            box, "import select\nepoll = attempt(select.epoll)\nepoll if type(epoll) is str else 'there'"
        )
        await box.kill()
        await neighbour.kill()
    assert (len(uids), told) == ((2, "there") if HAS_UIDS else (1, "ENOSYS"))


@needs_bwrap
async def test_bubblewraps_sandboxes_die_with_the_hub() -> None:
    keys: dict[str, Any] = {"backend": "bwrap", "python": SYSTEM_PYTHON}
    async with hub_process(sandboxes=3, busy=LINGERING, **keys) as hub:
        assert len(hub.all) >= 3 * 3
        hub.process.kill()
        with anyio.fail_after(10):
            await eventually(lambda: not hub.alive)
    await assert_next_hub_sweeps(hub)
