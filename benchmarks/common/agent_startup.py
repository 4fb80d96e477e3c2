"""The three servers of the MiroThinker agents for many tasks at once: inside the hub, or a process each."""

from __future__ import annotations

import functools
import gc
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks.common.callers import sdk_session
from benchmarks.common.measure import pss_bytes, tree
from benchmarks.common.result import Json, hub_config
from benchmarks.common.session_setup import Progress
from benchmarks.common.subprocess_worker import Worker
from benchmarks.common.worker_main import Act
from toolhub import Hub, HubTask

VARIANTS = ("hub_sessions", "hub_catalog", "gather_all")
# Starting 180 interpreters at once on two cores takes some minutes.
DEADLINE_S = 240.0


@dataclass(frozen=True)
class Builtin:
    """One of our servers, with its options for a hub and the same options as variables for its program."""

    name: str
    options: Json
    environment: dict[str, str]
    is_shared: bool
    """Whether all tasks share one, as in configs/mirothinker_1.7.yaml."""

    def entry(self, *, shared: bool) -> Json:
        share = "hub" if shared and self.is_shared else "task"
        return {"builtin": self.name, "options": self.options, "share": share}

    @property
    def program(self) -> Json:
        return {"argv": [sys.executable, "-m", "toolhub_servers", self.name], "env": self.environment}


# No service is called here, so these keys are never used.
_SUMMARY = {"summary_llm_base_url": "http://127.0.0.1:9/v1/chat/completions", "summary_llm_model_name": "a model"}
SERVERS = (
    Builtin("search_and_scrape_webpage", {"serper": {"api_key": "none"}}, {"SERPER_API_KEY": "none"}, True),
    Builtin("jina_scrape_llm_summary", _SUMMARY, {name.upper(): value for name, value in _SUMMARY.items()}, True),
    Builtin("python", {}, {}, False),
)


# --- inside -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_tasks(variant: str) -> AsyncIterator[Act]:
    """Answers ``{"tasks": n}`` with ``{"seconds", "ready", "failures"}`` once all are ready. A worker role.

    ``{"tasks": 0}`` only collects the garbage.
    """
    closing = anyio.Event()
    async with anyio.create_task_group() as holders, _VARIANTS[variant]() as open_one:

        async def act(request: Json) -> Json:
            progress = Progress(request["tasks"] * len(SERVERS), closing=closing)
            began = time.perf_counter()
            if request["tasks"]:
                for _ in range(request["tasks"]):
                    holders.start_soon(open_one, progress)
                with anyio.move_on_after(DEADLINE_S):
                    await progress.settled.wait()
            seconds = time.perf_counter() - began
            gc.collect()
            return {"seconds": seconds, "ready": progress.ready, "failures": progress.failures}

        yield act
        closing.set()


OpenOne = Callable[[Progress], Coroutine[Any, Any, None]]


@asynccontextmanager
async def _hub(*, catalog: bool) -> AsyncIterator[OpenOne]:
    """Open a hub. catalog: share servers as the config does and let later tasks get tools from the catalog."""
    servers = {server.name: server.entry(shared=catalog) for server in SERVERS}
    with tempfile.TemporaryDirectory() as state:
        async with Hub(hub_config(servers, Path(state))) as hub:

            async def list_tools(task: HubTask, server: str, progress: Progress) -> None:
                async with progress.guarded():
                    if catalog:
                        tools: list[Any] = await task.tools(server)
                    else:
                        tools = (await task.request(server, "tools/list"))["tools"]
                    _check(len(tools) > 0)
                    progress.tell()

            async def open_one(progress: Progress) -> None:
                task = await hub.open_task()
                async with anyio.create_task_group() as listing:
                    for server in servers:
                        listing.start_soon(list_tools, task, server, progress)

            yield open_one


@asynccontextmanager
async def _gather_all() -> AsyncIterator[OpenOne]:
    """Start a process per task and server, with a session of the SDK, all at once."""

    async def hold(server: Builtin, progress: Progress) -> None:
        async with progress.guarded(), sdk_session(server.program) as session:
            _check(len((await session.list_tools()).tools) > 0)
            progress.tell()
            await progress.closing.wait()

    async def open_one(progress: Progress) -> None:
        async with anyio.create_task_group() as holding:
            for server in SERVERS:
                holding.start_soon(hold, server, progress)

    yield open_one


def _check(is_listed: bool) -> None:
    if not is_listed:
        raise RuntimeError("a server without tools is not ready")


_VARIANTS: dict[str, Callable[[], AbstractAsyncContextManager[OpenOne]]] = {
    "hub_sessions": functools.partial(_hub, catalog=False),
    "hub_catalog": functools.partial(_hub, catalog=True),
    "gather_all": _gather_all,
}


# --- outside ------------------------------------------------------------------------------------------------------


def measure_agent_startup(variant: str, tasks: int) -> Json:
    """Return seconds, ready, failures, and bytes: by how much the memory of all processes has grown."""
    with Worker("benchmarks.common.agent_startup:open_tasks", {"variant": variant}) as worker:
        worker.ask({"tasks": 0})
        before = _tree_bytes(worker.pid)
        answer = worker.ask({"tasks": tasks}, within=DEADLINE_S + 60)
        processes = len(tree(worker.pid)) - 1
        return {"tasks": tasks, **answer, "bytes": _tree_bytes(worker.pid) - before, "processes": processes}


def _tree_bytes(pid: int) -> int:
    return sum(pss_bytes(process.pid) for process in tree(pid))
