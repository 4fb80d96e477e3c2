"""Files: what is put is what is got, whole or not at all."""

from __future__ import annotations

import hashlib

import anyio
import pytest
from running import Running
from toolhub_sandbox import FileError

from tests.toolhub_sandbox.local.sandbox_stage import patience

pytestmark = pytest.mark.anyio

SIZE = 20 << 20


async def stream(size, piece=700_000):
    sent = 0
    while sent < size:
        yield bytes([sent % 251]) * min(piece, size - sent)
        sent += piece


async def got(sandbox, path, **keys):
    with patience():
        return await sandbox.get(path, **keys)


async def put(sandbox, path, data):
    with patience():
        await sandbox.put(path, data)


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 3000])
async def test_what_is_put_is_what_is_got(sandbox, data):
    await put(sandbox, "file", data)
    assert await got(sandbox, "file") == data


@pytest.mark.parametrize(
    "path", ["a/b/c.txt", "./x/../y.txt", "/home/user/z", "/tmp/t", "my file 'n' \"q\".txt", "名" * 80, "\udce4"]
)
async def test_folders_are_made_and_relative_paths_start_at_home(sandbox, path):
    await put(sandbox, path, b"data")
    assert await got(sandbox, path) == b"data"


async def test_code_and_commands_see_the_same_files(sandbox):
    await put(sandbox, "a.txt", b"hello")
    with patience():
        assert (await sandbox.run_command("cat a.txt; printf bye > b.txt")).stdout == "hello"
        assert (await sandbox.exec_code("open('/home/user/b.txt').read()")).result == "'bye'"
    assert await got(sandbox, "b.txt") == b"bye"


async def test_a_large_file_travels_in_pieces_both_ways(sandbox):
    wanted = hashlib.sha256()
    async for piece in stream(SIZE):
        wanted.update(piece)
    await put(sandbox, "big", stream(SIZE))
    seen, size = hashlib.sha256(), 0
    with patience():
        async for piece in sandbox.read("big"):
            assert len(piece) <= 1 << 20
            seen.update(piece)
            size += len(piece)
    assert (size, seen.digest()) == (SIZE, wanted.digest())


async def test_a_file_is_replaced_as_a_whole(sandbox):
    await put(sandbox, "file", b"old")
    sent, go = anyio.Event(), anyio.Event()

    async def slowly():
        yield b"new"
        sent.set()
        await go.wait()
        yield b"er"

    async with anyio.create_task_group() as tasks:
        writing = Running(tasks, sandbox.put, "file", slowly())
        with patience():
            await sent.wait()
        assert await got(sandbox, "file") == b"old"
        go.set()
        await writing.wait()
    assert await got(sandbox, "file") == b"newer"
    with patience():
        assert (await sandbox.run_command("ls -A")).stdout == "file\n"


async def test_a_put_that_fails_on_the_way_leaves_the_old_file_and_nothing_else(sandbox):
    async def fails():
        yield b"new"
        raise ZeroDivisionError

    await put(sandbox, "file", b"old")
    with pytest.raises(ZeroDivisionError):
        await put(sandbox, "file", fails())
    assert await got(sandbox, "file") == b"old"
    with patience():
        assert (await sandbox.run_command("ls -A")).stdout == "file\n"


async def test_puts_that_are_cancelled_at_any_point_cost_nothing(sandbox):
    data = b"x" * (3 << 20)
    for steps in range(40):
        async with anyio.create_task_group() as tasks:
            writing = Running(tasks, sandbox.put, "big", data)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            writing.cancel()
    await put(sandbox, "after", b"well")
    with patience():
        left = (await sandbox.run_command("ls -A")).stdout.split()
    assert set(left) <= {"after", "big"}
    assert sandbox.is_alive


async def test_reads_that_are_given_up_cost_nothing(sandbox):
    await put(sandbox, "big", b"x" * (3 << 20))
    for steps in range(40):
        async with anyio.create_task_group() as tasks:
            reading = Running(tasks, sandbox.get, "big")
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            reading.cancel()
    for _ in range(20):
        pieces = sandbox.read("big")
        with patience():
            await anext(pieces)
        await pieces.aclose()
    assert len(await got(sandbox, "big")) == 3 << 20


async def test_a_link_is_followed_and_stays_one(sandbox):
    with patience():
        await sandbox.run_command("mkdir d; touch d/real; ln -s d/real link")
    await put(sandbox, "link", b"through")
    assert await got(sandbox, "d/real") == b"through"
    with patience():
        assert (await sandbox.run_command("readlink link")).stdout == "d/real\n"


@pytest.mark.parametrize(
    ("path", "problem", "text"),
    [
        ("nowhere", "missing", "'nowhere' in the sandbox does not exist"),
        ("file/below", "missing", "does not exist"),
        ("folder", "directory", "'folder' in the sandbox is a directory"),
        ("pipe", "not a file", "is not a regular file"),
        ("/dev/zero", "not a file", "is not a regular file"),
        ("locked", "denied", "may not be accessed"),
        ("a\0b", "other", "null byte"),
        ("x" * 300, "other", "too long"),
        ("loop", "other", "symbolic links"),
    ],
)
async def test_a_file_that_cannot_be_read_says_what_is_wrong(sandbox, path, problem, text):
    with patience():
        await sandbox.run_command("mkdir folder; mkfifo pipe; touch file locked; chmod 0 locked; ln -s loop loop")
    with pytest.raises(FileError, match=text) as caught:
        await got(sandbox, path)
    assert caught.value.problem == problem
    assert sandbox.is_alive


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("folder", "directory"),
        ("pipe", "not a file"),
        ("file/below", "other"),
        ("/usr/file", "denied"),
        ("/etc/new/file", "denied"),
        ("/", "directory"),
        ("", "directory"),
        ("a\0b", "other"),
        ("x" * 300, "other"),
    ],
)
async def test_a_file_that_cannot_be_written_says_what_is_wrong(sandbox, path, problem):
    with patience():
        await sandbox.run_command("mkdir folder; mkfifo pipe; touch file")
    with pytest.raises(FileError) as caught:
        await put(sandbox, path, b"data")
    assert caught.value.problem == problem


async def test_more_than_the_caller_wants_is_too_large(sandbox):
    await put(sandbox, "file", b"x" * 100)
    assert len(await got(sandbox, "file", max_bytes=100)) == 100
    with pytest.raises(FileError, match="more than 99 bytes") as caught:
        await got(sandbox, "file", max_bytes=99)
    assert caught.value.problem == "too large"


async def test_more_than_the_profile_moves_is_too_large_both_ways(scope):
    with patience():
        sandbox = await scope.create("small")
    await put(sandbox, "file", b"x" * 1000)
    for data in (b"x" * 1001, stream(1001, 100)):
        with pytest.raises(FileError) as caught:
            await put(sandbox, "file", data)
        assert caught.value.problem == "too large"
    with patience():
        await sandbox.run_command("head -c 2000 /dev/zero > more")
    with pytest.raises(FileError, match="more than 1000 bytes"):
        await got(sandbox, "more", max_bytes=5000)
    assert len(await got(sandbox, "file")) == 1000


async def test_a_full_disk_is_told_and_passes(scope):
    with patience():
        sandbox = await scope.create("cramped")
    with pytest.raises(FileError, match="does not fit: the sandbox's disk is full") as caught:
        await put(sandbox, "big", b"x" * (2 << 20))
    assert caught.value.problem == "no space"
    await put(sandbox, "less", b"x" * (700 << 10))


async def test_many_files_move_at_once(sandbox):
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(sandbox.put, f"f{number}", bytes([number]) * 400_000)
    for number in range(12):
        assert await got(sandbox, f"f{number}") == bytes([number]) * 400_000


async def test_the_17th_file_at_once_is_refused_and_says_so(sandbox):
    await put(sandbox, "file", b"x" * (1 << 20))
    open_files = [sandbox.read("file") for _ in range(16)]
    with patience():
        for pieces in open_files:
            await anext(pieces)
    with pytest.raises(FileError, match="16 files are open already"):
        await got(sandbox, "file")
    for pieces in open_files:
        await pieces.aclose()
    assert len(await got(sandbox, "file")) == 1 << 20


async def test_a_program_that_is_replaced_can_still_be_executed(sandbox):
    with patience():
        await sandbox.put("run.sh", b"#!/bin/sh\necho old")
        await sandbox.run_command("chmod 755 run.sh")
        await sandbox.put("run.sh", b"#!/bin/sh\necho new")
        assert (await sandbox.run_command("./run.sh")).stdout == "new\n"
