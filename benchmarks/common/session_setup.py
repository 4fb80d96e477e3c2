"""Variants of getting many tasks ready: every server's tools are listed and one call is answered. A worker role.

Each variant is a coroutine function `variant(servers, tasks, progress)` that reports every (task, server) pair to
`progress` and then holds what it opened until `progress.closing`. Another question may mean something else by ready:
`in_session` and `in_task` say what is asked of a server.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from benchmarks.common.callers import check, sdk_session
from benchmarks.common.result import hub_config
from benchmarks.common.worker_main import Act
from toolhub import Hub, HubTask

Json = dict[str, Any]


@dataclass
class Progress:
    """Counts the settled pairs. `settled` is set when all `wanted` are; `closing` is set when all may end."""

    wanted: int
    ready: int = 0
    failures: list[str] = field(default_factory=list)
    settled: anyio.Event = field(default_factory=anyio.Event)
    closing: anyio.Event = field(default_factory=anyio.Event)

    def tell(self, failure: str | None = None) -> None:
        self.ready += failure is None
        self.failures += [failure] if failure else []
        if self.ready + len(self.failures) >= self.wanted:
            self.settled.set()

    @asynccontextmanager
    async def guarded(self) -> AsyncIterator[None]:
        """Count a failure; it must not end the other pairs."""
        try:
            yield
        except Exception as exc:
            self.tell(f"{type(exc).__name__}: {exc}"[:200])


Variant = Callable[[list[Json], int, Progress], Coroutine[Any, Any, None]]
InSession = Callable[[Any, Json], Awaitable[None]]
"""Checks a server in a session of the SDK; raises if it is not ready."""
InTask = Callable[[HubTask, Json], Awaitable[None]]
"""The same in a task of a hub."""


async def list_and_call(session: Any, server: Json) -> None:
    await session.list_tools()
    check((await session.call_tool(server["tool"], server["arguments"])).is_error)


async def list_and_call_in_task(task: HubTask, server: Json) -> None:
    await task.tools(server["name"])
    check((await task.call(server["name"], server["tool"], server["arguments"])).is_error)


async def spawn_in_turn(servers: list[Json], tasks: int, progress: Progress) -> None:
    """MiroFlow: per server one process for the definitions, then one per call; one after the other."""
    for _ in range(tasks):
        for server in servers:
            async with progress.guarded():
                async with sdk_session(server) as session:
                    await session.list_tools()
                async with sdk_session(server) as session:
                    check((await session.call_tool(server["tool"], server["arguments"])).is_error)
                progress.tell()


async def gather_all(
    servers: list[Json], tasks: int, progress: Progress, *, in_session: InSession = list_and_call
) -> None:
    """A persistent SDK session per task and server, all started at once."""

    async def hold(server: Json) -> None:
        async with progress.guarded(), sdk_session(server) as session:
            await in_session(session, server)
            progress.tell()
            await progress.closing.wait()

    async with anyio.create_task_group() as holders:
        for server in servers * tasks:
            holders.start_soon(hold, server)


async def hub_per_task(servers: list[Json], tasks: int, progress: Progress) -> None:
    """toolhub, a session per task and server."""
    await _in_new_hub(servers, tasks, progress, share="task")


async def hub_shared(servers: list[Json], tasks: int, progress: Progress) -> None:
    """toolhub, one session per server for all tasks."""
    await _in_new_hub(servers, tasks, progress, share="hub")


async def _in_new_hub(servers: list[Json], tasks: int, progress: Progress, *, share: str) -> None:
    entries = {s["name"]: {"command": s["argv"][0], "args": s["argv"][1:], "share": share} for s in servers}
    with tempfile.TemporaryDirectory() as state:
        await through_hub(servers, tasks, progress, entries=entries, state=Path(state))


async def through_hub(
    servers: list[Json],
    tasks: int,
    progress: Progress,
    *,
    entries: Mapping[str, Json],
    state: Path,
    in_task: InTask = list_and_call_in_task,
) -> None:
    """entries: the servers in the hub's config, by the names that `servers` have. state: where the hub keeps files."""

    async def use(task: HubTask, server: Json) -> None:
        async with progress.guarded():
            await in_task(task, server)
            progress.tell()

    async with Hub(hub_config(entries, state)) as hub, anyio.create_task_group() as users:
        for _ in range(tasks):
            task = await hub.open_task()
            for server in servers:
                users.start_soon(use, task, server)
        await progress.closing.wait()
        users.cancel_scope.cancel()


VARIANTS: dict[str, Variant] = {
    variant.__name__: variant for variant in (spawn_in_turn, gather_all, hub_per_task, hub_shared)
}


@asynccontextmanager
async def open_tasks(variant: str, servers: list[Json], tasks: int) -> AsyncIterator[Act]:
    """One of `VARIANTS`; see `open_variant`."""
    async with open_variant(functools.partial(VARIANTS[variant], servers, tasks), tasks * len(servers)) as act:
        yield act


@asynccontextmanager
async def open_variant(variant: Callable[[Progress], Coroutine[Any, Any, None]], wanted: int) -> AsyncIterator[Act]:
    """Answers ``{"deadline_s": s}`` with ``{"seconds", "ready", "failures"}`` once all are ready or time is up.

    wanted: how many pairs of a task and a server the variant reports.
    """
    progress = Progress(wanted)
    async with anyio.create_task_group() as holders:

        async def act(request: Json) -> Json:
            began = time.perf_counter()
            holders.start_soon(variant, progress)
            with anyio.move_on_after(request["deadline_s"]):
                await progress.settled.wait()
            seconds = time.perf_counter() - began
            return {"seconds": seconds, "ready": progress.ready, "failures": progress.failures}

        yield act
        progress.closing.set()
        if not progress.settled.is_set():
            holders.cancel_scope.cancel()
