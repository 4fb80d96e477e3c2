"""Files: moved whole, in pieces, within limits."""

from __future__ import annotations

import anyio
import pytest
from toolhub_sandbox import FileError, SandboxError
from toolhub_sandbox.e2b import open_e2b

from tests.toolhub_sandbox.e2b.standin_stage import patience, profile, settings

pytestmark = pytest.mark.anyio

BYTES = bytes(range(256)) * 4096


async def pieces(*parts):
    for part in parts:
        yield part


def left_over(service, sandbox):
    return [place.name for place in service.machines[sandbox.id].path("in").glob(".*")]


async def test_a_file_comes_back_as_it_was_put(sandbox):
    with patience():
        await sandbox.put("in/data.bin", BYTES)
        assert await sandbox.get("/home/user/in/data.bin") == BYTES


async def test_a_stream_is_put_whole_and_read_in_pieces(sandbox, service):
    with patience():
        await sandbox.put("in/data.bin", pieces(BYTES, b"", BYTES))
        read = [piece async for piece in sandbox.read("in/data.bin")]
    assert b"".join(read) == BYTES * 2
    assert len(read) > 1
    assert left_over(service, sandbox) == []


async def test_an_empty_file_is_a_file(sandbox):
    with patience():
        await sandbox.put("empty", b"")
        assert await sandbox.get("empty") == b""


@pytest.mark.parametrize(("path", "problem"), [("nowhere", "missing"), ("in", "directory"), ("in/pipe", "not a file")])
async def test_what_cannot_be_read_is_told_apart(sandbox, path, problem):
    with patience():
        await sandbox.run_command("mkdir in; mkfifo in/pipe")
        with pytest.raises(FileError) as failure:
            await sandbox.get(path)
    assert failure.value.problem == problem
    assert f"/home/user/{path}" in str(failure.value)
    assert sandbox.is_alive


async def test_a_folder_is_not_overwritten(sandbox):
    with patience():
        await sandbox.run_command("mkdir in")
        with pytest.raises(FileError) as failure:
            await sandbox.put("in", b"data")
    assert failure.value.problem == "directory"


async def test_a_file_beyond_the_limit_is_not_read(sandbox, service):
    with patience():
        await sandbox.put("data.bin", BYTES)
        before = len(service.requests)
        with pytest.raises(FileError) as failure:
            await sandbox.get("data.bin", max_bytes=len(BYTES) - 1)
    assert failure.value.problem == "too large"
    assert "GET /files" not in service.requests[before:]


async def test_a_file_that_is_larger_than_it_says_is_cut_off(sandbox, service):
    with patience():
        await sandbox.run_command("ln -s /proc/self/status status")  # such files have size 0
        with pytest.raises(FileError) as failure:
            await sandbox.get("status", max_bytes=10)
    assert failure.value.problem == "too large"


async def test_bytes_beyond_the_limit_are_not_sent(backend, service):
    with patience():
        sandbox = await backend.create("small", profile(file_bytes=100))
        with pytest.raises(FileError) as failure:
            await sandbox.put("data.bin", bytes(101))
    assert failure.value.problem == "too large"
    assert "POST /files" not in service.requests


async def test_a_stream_beyond_the_limit_leaves_the_file_as_it_was(backend, service):
    with patience():
        sandbox = await backend.create("small", profile(file_bytes=100))
        await sandbox.put("in/data.bin", b"before")
        with pytest.raises(FileError) as failure:
            await sandbox.put("in/data.bin", pieces(bytes(60), bytes(60)))
        assert failure.value.problem == "too large"
        assert await sandbox.get("in/data.bin") == b"before"
    assert left_over(service, sandbox) == []


async def test_a_producer_that_fails_leaves_the_file_as_it_was_and_its_error_is_told(sandbox, service):
    async def failing():
        yield b"half"
        raise LookupError("the source is gone")

    with patience():
        await sandbox.put("in/data.bin", b"before")
        with pytest.raises(LookupError, match="the source is gone"):
            await sandbox.put("in/data.bin", failing())
        assert await sandbox.get("in/data.bin") == b"before"
    assert left_over(service, sandbox) == []


async def test_a_producer_may_take_its_time(service):
    async with open_e2b(settings(request_timeout_s=0.5)) as backend:

        async def slow():
            yield b"a"
            await anyio.sleep(0.7)  # longer than a request may take
            yield b"b"

        with patience():
            sandbox = await backend.create("bare", profile())
            await sandbox.put("slow", slow())
            assert await sandbox.get("slow") == b"ab"


async def test_an_upload_that_the_service_does_not_take_ends_in_time(service):
    async with open_e2b(settings(request_timeout_s=0.5)) as backend:
        with patience():
            sandbox = await backend.create("bare", profile())
            service.fail("POST /files", until=anyio.Event())
            with pytest.raises(SandboxError, match="made no progress"):
                await sandbox.put("slow", pieces(b"data"))
