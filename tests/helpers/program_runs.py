"""Programs run by fork and by exec, for tests that look at both."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio

from toolhub import ServerSpec
from toolhub.spawn.exec import Spawner, open_spawner
from toolhub.spawn.fork.server import ForkServer
from toolhub.spawn.journal import open_journal

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it wrote."""

    code: int | None
    stdout: str
    stderr: str


@asynccontextmanager
async def spawners(state_dir: Path) -> AsyncIterator[tuple[Spawner, ForkServer]]:
    """A spawner that keeps what it learns in `state_dir`, all of it bounded in time."""
    with anyio.fail_after(30), open_journal(state_dir / "journal") as journal:
        async with open_spawner(journal) as spawner:
            assert spawner.forks is not None
            yield spawner, spawner.forks


async def run(
    spawner: Spawner,
    *argv: str,
    spawn: Literal["exec", "fork"] = "fork",
    stdin: bytes = b"",
    spec: ServerSpec | None = None,
    **fields: Any,
) -> Ended:
    """Run a program to its end as a server is started, and let what it imported be learned."""
    spec = spec or ServerSpec(name="program", command=argv[0], args=list(argv[1:]), spawn=spawn, **fields)
    child = await spawner.start(spec, argv)
    written: dict[str, bytes] = {}
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.watch)
            os.write(child.stdin, stdin)
            child.close_stdin()

            async def read(name: str, fd: int) -> None:
                written[name] = await _everything(fd)

            tasks.start_soon(read, "stdout", child.stdout)
            tasks.start_soon(read, "stderr", child.stderr)
        child.on_ready()
    finally:
        child.close()
    return Ended(child.exit_code, written["stdout"].decode(), written["stderr"].decode())


async def _everything(fd: int) -> bytes:
    read = b""
    while True:
        await anyio.wait_readable(fd)
        chunk = os.read(fd, 65536)
        if not chunk:
            return read
        read += chunk


async def both(spawner: Spawner, *argv: str, **fields: Any) -> tuple[Ended, Ended]:
    """The same program executed, and forked from a zygote that knows what it imports and no longer records."""
    executed = await run(spawner, *argv, spawn="exec", **fields)
    for _ in range(2):
        await run(spawner, *argv, **fields)
    forked = await run(spawner, *argv, **fields)
    return executed, forked


__all__ = ["HERE", "Ended", "both", "run", "spawners"]
