"""What the kernel counts per uid: whoever uses all of it up must not take it from others, nor from the hub."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toolhub_sandbox import Sandbox
from toolhub_sandbox.local.sandbox import LocalSandbox

from tests.toolhub_sandbox.hostile.hostile_stage import HostileStage, patience, tried, value

pytestmark = pytest.mark.anyio

HAS_UIDS = os.geteuid() == 0
# As many pipes as this user may have before the kernel makes new ones smaller: fs.pipe-user-pages-soft.
PIPES = """
import fcntl
kept, sizes = [], []
while not sizes or sizes[-1] == sizes[0] and len(kept) < 1900:
    pipe = attempt(os.pipe)
    if isinstance(pipe, str):
        break
    kept.append(pipe)
    sizes.append(fcntl.fcntl(pipe[0], 1032))
"""
# Files on their way in messages, until there may be no more of this user's.
IN_FLIGHT = """
import array
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
more = []
def fly():
    many = array.array("i", [0] * 250)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(40)]
    more.extend(pairs)
    for pair in pairs * 3:
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
attempt(fly)
"""


def pid_outside(box: Sandbox) -> int:
    """The pid that this machine knows the first process of a sandbox by."""
    assert isinstance(box, LocalSandbox)
    lines = Path(f"/proc/self/fdinfo/{box._pidfd}").read_text().splitlines()
    (pid,) = (line.split()[1] for line in lines if line.startswith("Pid:"))
    return int(pid)


def uid_outside(box: Sandbox) -> int:
    """The uid that this machine knows the first process of a sandbox by."""
    lines = Path(f"/proc/{pid_outside(box)}/status").read_text().splitlines()
    (uids,) = (line for line in lines if line.startswith("Uid:"))
    (uid,) = set(uids.split()[1:])
    return int(uid)


async def test_every_sandbox_has_a_uid_of_its_own_where_the_hub_is_root(stage: HostileStage) -> None:
    with patience():
        other = await stage.scope.create()
        uids = [uid_outside(box) for box in (stage.box, stage.neighbour, other)]
        assert os.geteuid() not in uids or not HAS_UIDS
        assert len(set(uids)) == (3 if HAS_UIDS else 1)
        told = await value(other, "import os\n[os.getuid(), os.stat('/home/user').st_uid, os.stat('/proc/1').st_uid]")
        assert told == [1000, 1000, 1000]


async def test_a_uid_is_free_again_when_its_sandbox_has_ended(stage: HostileStage) -> None:
    backend = stage.sandboxes._backend
    assert backend is not None
    lent = backend.value.uids  # type: ignore[attr-defined]  # of the backends that are made here
    if not HAS_UIDS:
        assert lent is None
        return
    with patience():
        before = lent.lent
        box = await stage.scope.create()
        assert lent.lent == before | {uid_outside(box)}
        await box.kill()
        assert lent.lent == before


async def test_pipes_of_one_sandbox_leave_a_neighbour_its_own(stage: HostileStage) -> None:
    size = "import fcntl, os\nfcntl.fcntl(os.pipe()[0], 1032)"
    with patience():
        usual = await value(stage.neighbour, size)
        most = await tried(stage.box, PIPES + "sizes[-1], len(kept)")
        if HAS_UIDS:
            assert most[0] < usual, "the limit was not reached"
            assert await value(stage.neighbour, size) == usual
        assert (
            await value(stage.neighbour, "import os\nreader, writer = os.pipe()\nos.write(writer, b'x' * 4096)") == 4096
        )


async def test_files_in_flight_of_one_sandbox_leave_a_neighbour_its_own(stage: HostileStage) -> None:
    one = "import socket, array\nthere, here = socket.socketpair()\nsocket.send_fds(there, [b'x'], [0])"
    with patience():
        assert await tried(stage.box, IN_FLIGHT) == "ETOOMANYREFS"
        if HAS_UIDS:
            assert await value(stage.neighbour, one) == 1
        box = await stage.scope.create()  # a young one sends the hub its own
        assert await value(box, "1 + 1") == 2


async def test_epoll_is_there_only_where_each_sandbox_has_a_uid(stage: HostileStage) -> None:
    """fs.epoll.max_user_watches: else one sandbox could take every watch, those of an ordinary user's hub too."""
    with patience():
        told = await tried(
            stage.box, "import select\nepoll = attempt(select.epoll)\nepoll if type(epoll) is str else 'there'"
        )
    assert told == ("there" if HAS_UIDS else "ENOSYS")


async def test_the_agent_watches_nothing_with_epoll(stage: HostileStage) -> None:
    with patience():
        assert await value(stage.box, "1 + 1") == 2  # it waits for the next request, and opens nothing meanwhile
    if not HAS_UIDS:
        return  # the descriptors of an agent cannot be read, and there is no epoll
    folder = Path(f"/proc/{pid_outside(stage.box)}/fd")
    kinds = {os.readlink(path) for path in folder.iterdir()}
    assert kinds and "anon_inode:[eventpoll]" not in kinds


@pytest.mark.parametrize("code", ["await", "asyncio.run", "command"])
async def test_asyncio_works_with_and_without_epoll(stage: HostileStage, code: str) -> None:
    talk = """
import asyncio
async def talk():
    async def echo(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    program = await asyncio.create_subprocess_exec("echo", "there", stdout=asyncio.subprocess.PIPE)
    told = (await reader.readline()).decode() + (await program.communicate())[0].decode()
    writer.close()
    server.close()
    return told
"""
    with patience():
        if code == "command":
            await stage.box.put("talk.py", (talk + "print(asyncio.run(talk()), end='')").encode())
            done = await stage.box.run_command("python3 talk.py")
            assert done.stdout == "hello\nthere\n", done
        else:
            run = "await talk()" if code == "await" else "asyncio.run(talk())"
            assert await value(stage.box, talk + run) == "hello\nthere\n"
