"""The agent inside a stand-in sandbox: processes and files, on the server classes that the SDK ships."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.filesystem import filesystem_connect, filesystem_pb
from e2b.envd.process import process_connect, process_pb
from protobuf import Oneof

from tests.toolhub_sandbox.e2b.standin_machine import HOME, Machine

FindMachine = Callable[[Any], "Machine | None"]


def _event(field: str, value: Any) -> process_pb.StartResponse:
    event: Any = Oneof(field, value)
    return process_pb.StartResponse(event=process_pb.ProcessEvent(event=event))


class _Inside:
    """Finds the sandbox that a request is for."""

    def __init__(self, find: FindMachine, on_start: Callable[[str], None]) -> None:
        self._find = find
        self._on_start = on_start

    def machine(self, ctx: Any) -> Machine:
        machine = self._find(ctx.request_headers)
        if machine is None:
            raise ConnectError(Code.UNAVAILABLE, "The sandbox was not found")
        return machine


class Processes(_Inside, process_connect.Process):
    """Runs commands. As the real agent: a command ends when its streams do, and outlives its connection."""

    async def start(self, request: Any, ctx: Any) -> AsyncIterator[process_pb.StartResponse]:
        machine, config = self.machine(ctx), request.process
        self._on_start(config.args[-1])
        folder = machine.path(config.cwd or HOME)
        if not folder.is_dir():
            raise ConnectError(Code.INVALID_ARGUMENT, f"cwd '{config.cwd}' does not exist")
        process = await asyncio.create_subprocess_exec(
            config.cmd,
            *config.args,
            cwd=folder,
            env={**machine.env, **dict(config.envs)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        machine.processes[process.pid] = process
        yield _event("start", process_pb.ProcessEvent.StartEvent(pid=process.pid))
        async for name, data in _output(process):
            output: Any = Oneof(name, data)
            yield _event("data", process_pb.ProcessEvent.DataEvent(output=output))
        code = await process.wait()
        del machine.processes[process.pid]
        status = f"exit status {code}" if code >= 0 else "signal: killed"
        yield _event(
            "end",
            process_pb.ProcessEvent.EndEvent(exit_code=max(code, -1), exited=code >= 0, status=status, error=status),
        )

    async def send_signal(self, request: Any, ctx: Any) -> process_pb.SendSignalResponse:
        process = self.machine(ctx).processes.get(request.process.selector.value)
        if process is None:
            raise ConnectError(Code.NOT_FOUND, "process not found")
        os.kill(process.pid, signal.SIGKILL)
        return process_pb.SendSignalResponse()


async def _output(process: asyncio.subprocess.Process) -> AsyncIterator[tuple[str, bytes]]:
    pieces: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def pump(name: str, stream: Any) -> None:
        while data := await stream.read(65536):
            pieces.put_nowait((name, data))
        pieces.put_nowait((name, b""))

    pumps = [asyncio.create_task(pump(name, getattr(process, name))) for name in ("stdout", "stderr")]
    try:
        open_streams = len(pumps)
        while open_streams:
            name, data = await pieces.get()
            if data:
                yield name, data
            else:
                open_streams -= 1
    finally:
        for task in pumps:
            task.cancel()


class Folders(_Inside, filesystem_connect.Filesystem):
    """What the backend uses of the file system service."""

    def _entry(self, machine: Machine, path: str) -> filesystem_pb.EntryInfo:
        place = machine.path(path)
        if not place.exists():
            raise ConnectError(Code.NOT_FOUND, f"file '{path}' does not exist")
        kind = filesystem_pb.FileType.UNSPECIFIED
        if place.is_dir():
            kind = filesystem_pb.FileType.DIRECTORY
        elif place.is_file():
            kind = filesystem_pb.FileType.FILE
        return filesystem_pb.EntryInfo(name=place.name, type=kind, path=path, size=place.stat().st_size)

    async def stat(self, request: Any, ctx: Any) -> filesystem_pb.StatResponse:
        return filesystem_pb.StatResponse(entry=self._entry(self.machine(ctx), request.path))

    async def move(self, request: Any, ctx: Any) -> filesystem_pb.MoveResponse:
        machine = self.machine(ctx)
        os.rename(machine.path(request.source), machine.path(request.destination))
        return filesystem_pb.MoveResponse(entry=self._entry(machine, request.destination))

    async def remove(self, request: Any, ctx: Any) -> filesystem_pb.RemoveResponse:
        place = self.machine(ctx).path(request.path)
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        return filesystem_pb.RemoveResponse()
