"""What put() and get() make of the names and files that code prepares for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from toolhub_sandbox import FileError

from tests.toolhub_sandbox.hostile.hostile_stage import (
    MIB,
    SMALL,
    HostileStage,
    cheap_for_the_hub,
    patience,
    tried,
    value,
)

pytestmark = pytest.mark.anyio

PREPARED = """
os.makedirs("folder", exist_ok=True)
for link, target in {
    "shadow": "/etc/shadow", "passwd": "/etc/passwd", "root": "/root", "self": "self", "hub": "/proc/1/environ",
    "memory": "/proc/1/mem", "fds": "/proc/1/fd", "zero": "/dev/zero", "random": "/dev/urandom", "null": "/dev/null",
    "up": "../../../../../../../../etc/shadow", "nowhere": "/nonexistent/file", "there": "/home/user/folder",
    "usr": "/usr", "readonly": "/usr/bin/env", "loop1": "loop2", "loop2": "loop1",
}.items():
    os.symlink(target, link)
os.mkfifo("fifo")
listener = socket.socket(socket.AF_UNIX)
listener.bind("socket")
listener.listen()
for number in range(100):
    os.symlink(f"chain{number + 1}", f"chain{number}")
open("closed", "w").close()
os.chmod("closed", 0)
os.makedirs("locked")
os.chmod("locked", 0o500)
"""


async def problem(action: object) -> str:
    with pytest.raises(FileError) as raised:
        await action
    return raised.value.problem


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("shadow", "missing"),
        ("/etc/shadow", "missing"),
        ("/home/user/../../etc/shadow", "missing"),
        ("../" * 50 + "etc/shadow", "missing"),
        ("up", "missing"),
        ("root/.ssh/id_rsa", "missing"),
        ("hub", "denied"),
        ("self", "other"),
        ("loop1", "other"),
        ("chain0", "other"),
        ("fifo", "not a file"),
        ("socket", "not a file"),
        ("/dev/zero", "not a file"),
        ("zero", "not a file"),
        ("random", "not a file"),
        ("null", "not a file"),
        ("folder", "directory"),
        ("/", "directory"),
        ("", "directory"),
        (".", "directory"),
        ("there", "directory"),
        ("fds", "directory"),
        ("memory", "denied"),
        ("closed", "denied"),
        ("nowhere", "missing"),
        ("folder/closed/x", "missing"),
        ("passwd/x", "missing"),
        ("a\0b", "other"),
        ("n" * 5000, "other"),
        ("a/" * 3000 + "b", "other"),
        ("\ud800", "missing"),
    ],
)
async def test_what_is_no_file_of_the_sandbox_cannot_be_got(stage: HostileStage, path: str, expected: str) -> None:
    with patience(), cheap_for_the_hub():
        await tried(stage.box, PREPARED)
        assert await problem(stage.box.get(path)) == expected
        assert await value(stage.box, "1 + 1") == 2


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/passwd", "denied"),
        ("passwd", "denied"),
        ("shadow", "denied"),
        ("/usr/bin/evil", "denied"),
        ("readonly", "denied"),
        ("usr/evil", "denied"),
        ("/evil", "denied"),
        ("/home/evil", "denied"),
        ("../" * 50 + "evil", "denied"),
        ("up", "denied"),
        ("root/.ssh/authorized_keys", "denied"),
        ("nowhere", "denied"),
        ("locked/x", "denied"),
        ("folder", "directory"),
        ("there", "directory"),
        ("", "directory"),
        ("/tmp", "directory"),
        ("fifo", "not a file"),
        ("socket", "not a file"),
        ("zero", "not a file"),
        ("/dev/null", "not a file"),
        ("/dev/new", "denied"),
        ("closed/x", "missing"),
        ("/proc/1/mem", "denied"),
        ("/proc/sys/kernel/core_pattern", "denied"),
        ("/proc/sysrq-trigger", "denied"),
        ("memory", "denied"),
        ("fds/new", "missing"),
        ("a\0b", "other"),
        ("n" * 5000, "other"),
        ("a/" * 3000 + "b", "other"),
    ],
)
async def test_what_is_not_the_sandboxs_own_cannot_be_put(stage: HostileStage, path: str, expected: str) -> None:
    with patience():
        await tried(stage.box, PREPARED)
        got = await problem(stage.box.put(path, b"evil"))
        assert got == expected or (got, expected) in {("missing", "denied"), ("other", "missing")}
        assert await value(stage.box, "1 + 1") == 2


async def test_a_put_through_a_linked_folder_stays_in_the_sandbox(stage: HostileStage) -> None:
    with patience():
        await tried(stage.box, PREPARED)
        await stage.box.put("there/new.txt", b"new")
        assert await value(stage.box, "open('/home/user/folder/new.txt').read()") == "new"


async def test_a_put_replaces_what_a_link_points_to_and_keeps_the_link(stage: HostileStage) -> None:
    with patience():
        await tried(stage.box, "open('target', 'w').close(); os.symlink('target', 'link')")
        await stage.box.put("link", b"new")
        assert await tried(stage.box, "os.readlink('link'), open('target').read()") == ("target", "new")


async def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(stage: HostileStage) -> None:
    code = """
import threading
def grow():
    with open("growing", "wb", buffering=0) as file:
        while True:
            if file.write(bytes(1 << 16)) and file.tell() > 16 << 20:
                file.seek(0)
threading.Thread(target=grow, daemon=True).start()
while attempt(os.path.getsize, "growing") in ("ENOENT", 0):
    time.sleep(0.01)
"""
    with patience(), cheap_for_the_hub():
        await tried(stage.box, code)
        try:
            data = await stage.box.get("growing", max_bytes=2 * MIB)
            assert len(data) <= 2 * MIB
        except FileError as exc:
            assert exc.problem == "too large"


async def test_a_sparse_file_of_a_terabyte_is_refused_before_it_costs_anything(stage: HostileStage) -> None:
    with patience(), cheap_for_the_hub():
        assert (
            await tried(stage.box, "attempt(os.truncate, os.open('sparse', os.O_CREAT | os.O_RDWR), 1 << 40)")
            == "EFBIG"
        )
        await tried(stage.box, "os.truncate('sparse', 25 << 20)")
        assert await problem(stage.box.get("sparse")) == "too large"


async def test_a_put_that_is_too_large_leaves_nothing(stage: HostileStage) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(MIB)

    with patience(), cheap_for_the_hub():
        assert await problem(stage.box.put("big", endless())) == "too large"
        assert await value(stage.box, "import os; os.listdir()") == []


async def test_a_put_into_a_full_folder_says_so_and_leaves_nothing(stage: HostileStage) -> None:
    with patience():
        await tried(stage.box, f"open('big', 'wb').write(bytes({SMALL['home_bytes']} - 8192))")
        assert await problem(stage.box.put("more", bytes(MIB))) == "no space"
        assert await value(stage.box, "os.listdir()") == ["big"]


async def test_puts_and_gets_that_are_cancelled_leave_no_open_file(stage: HostileStage) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"x"
        await anyio.sleep_forever()

    with patience():
        await stage.box.put("data", bytes(4 * MIB))
        for wait in (0, 0.001, 0.002) * 12:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stage.box.put, "new", slowly())
                tasks.start_soon(stage.box.get, "data")
                await anyio.sleep(wait)  # somewhere in between
                tasks.cancel_scope.cancel()
        assert len(await stage.box.get("data")) == 4 * MIB
        await stage.box.put("new", b"x")
        assert sorted(await value(stage.box, "import os; os.listdir()")) == ["data", "new"]


async def test_a_file_that_is_swapped_for_a_link_while_it_is_put_harms_nobody(stage: HostileStage) -> None:
    code = """
import threading
os.makedirs("target", exist_ok=True)
def swap():
    while True:
        for target in ("/usr/bin", "/etc", "/proc/1", "target"):
            attempt(os.unlink, "swapped")
            attempt(os.symlink, target, "swapped")
threading.Thread(target=swap, daemon=True).start()
"""
    with patience():
        await tried(stage.box, code)
        for _ in range(200):
            try:
                await stage.box.put("swapped/x", b"evil")
            except FileError:
                pass
        assert await value(stage.box, "1 + 1") == 2


@pytest.mark.parametrize(
    "cwd", ["/root", "/nonexistent", "/proc/1/cwd", "a\0b", "\ud800", "x" * 400_000, "/etc/passwd"]
)
async def test_a_command_needs_a_folder_of_the_sandbox(stage: HostileStage, cwd: str) -> None:
    with patience():
        done = await stage.box.run_command("pwd", cwd=cwd)
        if cwd == "/root" and done.exit_code == 0:  # an interpreter lives below it
            assert (await stage.box.run_command("ls -A", cwd=cwd)).stdout in (".pyenv\n", "")
            return
        assert done.exit_code == 126
        assert "Permission denied" in done.stderr or "not a directory" in done.stderr


@pytest.mark.parametrize(
    "env", [{"A=B": "x"}, {"A": "a\0b"}, {"A": "\ud800"}, {"": "x"}, {"LD_PRELOAD": "/nonexistent"}]
)
async def test_a_command_with_an_impossible_environment_fails_alone(stage: HostileStage, env: dict[str, str]) -> None:
    with patience():
        done = await stage.box.run_command("echo ran", env=env)
        assert done.exit_code in (0, 126)
        assert await value(stage.box, "1 + 1") == 2


async def test_requests_that_are_too_long_are_refused_before_they_are_sent(stage: HostileStage) -> None:
    with patience():
        with pytest.raises(ValueError, match="bytes"):
            await stage.box.run_command("true", env={"A": "x" * (2 << 20)})
        assert await value(stage.box, "1 + 1") == 2


@pytest.mark.parametrize("timeout", [0.0, -1.0, 1e8, float("inf")])
async def test_every_timeout_is_a_number(stage: HostileStage, timeout: float) -> None:
    with patience():
        done = await stage.box.exec_code("1 + 1", timeout=timeout)
        assert done.result == "2" or done.timed_out
        command = await stage.box.run_command("true", timeout=timeout)
        assert command.exit_code == 0 or command.timed_out
        assert await value(stage.box, "1 + 1") == 2
