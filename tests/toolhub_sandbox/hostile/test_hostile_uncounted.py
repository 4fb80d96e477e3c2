"""Where no cgroup counts the kernel's memory: what files, sockets and page tables hold counts all the same."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_processes import eventually
from toolhub_sandbox import Execution, OwnerSandboxes, Sandbox, Sandboxes
from toolhub_sandbox.inside.isolation import FILE_SYSTEMS
from toolhub_sandbox.local import backend
from toolhub_sandbox.local.fork_server import ForkServer

from tests.toolhub_sandbox.hostile.hostile_stage import MIB, TRIES, patience, settings, tried, value

pytestmark = pytest.mark.anyio

LIMIT = 100 * MIB
# Larger files than memory, as in a profile whose memory alone was made small.
ROOMY = {"home_bytes": 500 * MIB, "tmp_bytes": 500 * MIB}
FILL = """
def fill(folder):
    with open(f"{folder}/big", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
told = [attempt(fill, folder) for folder in ("/home/user", "/tmp", "/dev/shm")]
sizes = [os.path.getsize(f"{folder}/big") for folder in ("/home/user", "/tmp", "/dev/shm")]
"""
# Enough pairs for more than the limit, each with as much in it as it takes.
SOCKETS = """
pairs = []
def fill(count, size):
    for _ in range(count):
        pairs.append(socket.socketpair(socket.AF_UNIX, kind))
        for end in pairs[-1]:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            end.setblocking(False)
            while attempt(end.send, bytes(size)) != "EAGAIN":
                pass
"""


@contextmanager
def no_cgroups() -> Iterator[tuple[None, str]]:
    yield None, "this test has none"


@pytest.fixture(scope="module")
async def uncounted(anyio_backend: object) -> AsyncIterator[Sandboxes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "open_cgroups", no_cgroups)
        async with Sandboxes(settings(bare=ROOMY)) as sandboxes:
            yield sandboxes


@pytest.fixture
async def scope(uncounted: Sandboxes) -> AsyncIterator[OwnerSandboxes]:
    scope = uncounted.for_owner("villain")
    yield scope
    with patience():
        await scope.aclose()


@pytest.fixture
async def box(scope: OwnerSandboxes) -> Sandbox:
    with patience():
        return await scope.create()


def zygote_of(sandboxes: Sandboxes) -> ForkServer:
    held = sandboxes._backend
    assert held is not None
    fork_server = held.value._fork_servers["bare"].held.value  # type: ignore[attr-defined]  # of the backends of this machine
    assert isinstance(fork_server, ForkServer)
    return fork_server


def was_killed_for_memory(done: Execution) -> bool:
    return done.error is not None and done.error.name == "MemoryLimit"


async def test_doctor_tells_what_is_not_bounded(uncounted: Sandboxes) -> None:
    with patience():
        found = (await uncounted.check()).findings
    weaker = [text for _, status, text in found if status == "weaker"]
    assert any("no cgroup (this test has none)" in text for text in weaker)
    assert any(
        "nothing bounds pipes" in text and "systemd-run --user --scope -p Delegate=yes" in text for text in weaker
    )


async def test_files_in_memory_cannot_hold_more_than_the_memory_limit(box: Sandbox) -> None:
    with patience():
        told, sizes = await tried(box, FILL + "told, sizes")
    assert told == ["ENOSPC"] * 3
    assert LIMIT // 2 < sum(sizes) <= LIMIT


async def test_files_in_memory_count_together_with_processes(box: Sandbox) -> None:
    """40 MiB of files are well below the limit, and so are 70 MiB of memory."""
    with patience():
        assert await value(box, "open('/home/user/big', 'wb').write(bytes(40 << 20))") == 40 * MIB
        done = await box.exec_code("import time\nmine = b'x' * (70 << 20)\ntime.sleep(20)")
    assert was_killed_for_memory(done), done


async def test_empty_files_are_bounded_by_the_memory_limit(box: Sandbox) -> None:
    code = """
def fill(folder):
    for number in range(1_000_000):
        os.close(os.open(f"{folder}/{number}", os.O_CREAT))
told = [attempt(fill, folder) for folder in ("/home/user", "/tmp", "/dev/shm")]
told, sum(len(os.listdir(folder)) for folder in ("/home/user", "/tmp", "/dev/shm"))
"""
    with patience():
        told, count = await tried(box, code)
    assert told == ["ENOSPC"] * 3
    assert count * 1024 < LIMIT


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"])
async def test_full_sockets_count_as_memory(box: Sandbox, kind: str) -> None:
    """In two processes: one may not open enough of them."""
    code = """
child = os.fork()
fill(110, 60_000)
time.sleep(20)
"""
    with patience():
        done = await box.exec_code(TRIES + f"kind = socket.{kind}\n" + SOCKETS + code)
    assert was_killed_for_memory(done), done


async def test_sockets_that_many_processes_fill_count_together(box: Sandbox) -> None:
    code = """
for _ in range(8):
    if os.fork() == 0:
        fill(50, 60_000)
        time.sleep(60)
        os._exit(0)
os.waitstatus_to_exitcode(os.wait()[1])
"""
    with patience():
        done = await box.exec_code(TRIES + "kind = socket.SOCK_STREAM\n" + SOCKETS + code)
    assert done.result == "-9" or was_killed_for_memory(done), done


async def test_a_socket_holds_no_more_than_a_default_buffer(box: Sandbox) -> None:
    code = """
kind = socket.SOCK_STREAM
usual = socket.socketpair()[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
fill(1, 60_000)
ours, theirs = pairs[0]
held = 0
while isinstance(data := attempt(theirs.recv, 1 << 20), bytes):
    held += len(data)
usual == ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), held
"""
    with patience():
        is_usual, held = await tried(box, SOCKETS + code)
    assert is_usual
    assert held < 320 << 10


async def test_a_few_dozen_sockets_count_and_are_no_reason_to_kill(uncounted: Sandboxes, box: Sandbox) -> None:
    with patience():
        await eventually(lambda: box.id in zygote_of(uncounted).usage)
        before = zygote_of(uncounted).usage[box.id]
        await tried(box, SOCKETS + "kind = socket.SOCK_STREAM\nfill(30, 60_000)")
        await eventually(lambda: zygote_of(uncounted).usage[box.id] > before + 5 * MIB)
        assert await value(box, "len(pairs)") == 30


async def test_a_tcp_connection_holds_no_more_than_two_small_buffers(box: Sandbox) -> None:
    code = """
listener = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(listener.getsockname())
theirs, _ = listener.accept()
ours.setblocking(False)
sent = idle = 0
while idle < 50:
    count = attempt(ours.send, bytes(1 << 16))
    if count == "EAGAIN":
        idle += 1
        time.sleep(0.01)
    else:
        sent, idle = sent + count, 0
sent
"""
    with patience():
        assert 0 < await tried(box, code) < 1 * MIB


async def test_page_tables_count_as_memory(box: Sandbox) -> None:
    code = """
import mmap, time  # 0x4000: MAP_NORESERVE
wide = mmap.mmap(-1, 128 << 30, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)
for at in range(0, len(wide), 2 << 20):
    wide[at]
time.sleep(20)
"""
    with patience():
        done = await box.exec_code(code)
    assert was_killed_for_memory(done), done


async def test_code_may_open_few_files_where_nothing_counts_them(box: Sandbox) -> None:
    with patience():
        assert await value(box, "import resource\nresource.getrlimit(resource.RLIMIT_NOFILE)") == (256, 256)
        assert (await box.run_command("ulimit -Hn")).stdout == "256\n"


async def test_what_is_not_counted_anywhere_is_missing(box: Sandbox) -> None:
    """Queues and semaphores of System V: kernel memory that a namespace may have gigabytes of."""
    code = """
numbers = {"x86_64": (68, 64, 29), "aarch64": (186, 190, 194)}[os.uname().machine]
[call(number, 0, 1, 0o1600) for number in numbers], attempt(os.memfd_create, "x")
"""
    with patience():
        assert await tried(box, code) == (["ENOSYS"] * 3, "ENOSYS")


async def test_a_sandbox_that_is_gone_leaves_the_zygote_no_descriptors(
    uncounted: Sandboxes, scope: OwnerSandboxes, box: Sandbox
) -> None:
    """The zygote has one for each file system of each sandbox; after hundreds it could open no more."""
    launcher = zygote_of(uncounted).pid
    (zygote,) = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()

    def watched() -> int:
        links = (os.readlink(f"/proc/{zygote}/fd/{number}") for number in os.listdir(f"/proc/{zygote}/fd"))
        return sum(link in FILE_SYSTEMS for link in links)

    with patience():
        await eventually(lambda: watched() == len(FILE_SYSTEMS))  # those of `box`, and no more of earlier tests
        others = [await scope.create() for _ in range(3)]
        await eventually(lambda: watched() == 4 * len(FILE_SYSTEMS))
        for other in others:
            await other.kill()
        await eventually(lambda: watched() == len(FILE_SYSTEMS))
