"""The tool wait of `waits` behind the LLM proxy: a real `toolhub serve`, and an agent that gives no hints itself."""

from __future__ import annotations

import importlib.metadata
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import httpx2
from toolhub_agent.tools import HubTools

from benchmarks.common.hub_process import HttpHub
from benchmarks.common.result import Json
from benchmarks.kv.waits import HintVariant, Others, Sizes, Trial, trial
from benchmarks.llm.prompts import open_writer
from benchmarks.llm.scripted_agent import SERVER, TOOL, Served, open_side
from toolhub import connect
from toolhub.extensions import EXTENSIONS

_PATIENCE_S = 300.0
# Calls that the hub has seen before, so that it knows how long the tool takes.
_SEEN = 6


def missing() -> str | None:
    """Why the proxy cannot be measured here."""
    if importlib.metadata.entry_points(group=EXTENSIONS, name="frontend-llm"):
        return None
    return "the LLM proxy is not installed (entry point `frontend-llm` of toolhub.extensions)"


@asynccontextmanager
async def open_frontend(served: Served, sizes: Sizes) -> AsyncIterator[Trial]:
    """Yield a trial through the proxy. The hub's hints are never switched off and know the tool's durations."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False))
        writer = await open_writer(http, served)
        others = Others(http, served, writer, sizes)
        hub = stack.enter_context(_hub(served, sizes, writer.text(sizes.result)))
        remote = await stack.enter_async_context(connect(hub.url))
        behind = Served(f"{hub.url}/llm/v1", served.model, served.kind)
        side = await stack.enter_async_context(open_side(behind))

        async def through(variant: HintVariant) -> Json:
            name = f"proxy{uuid.uuid4().hex[:8]}"
            async with remote.task(name) as task:
                return await trial(side, HubTools(task), variant, others, name)

        async with remote.task("seen-before") as task, anyio.create_task_group() as group:
            for number in range(_SEEN):
                group.start_soon(task.call, SERVER, TOOL, {"q": f"before {number}"})
        yield through


def _hub(served: Served, sizes: Sizes, text: str) -> HttpHub:
    options = {"seconds": sizes.tool_s, "text": text}
    entry = {"builtin": "benchmarks.common.slow_tool:create_server", "options": options, "share": "hub"}
    llm = served.settings().model_dump(mode="json", exclude_unset=True) | {"hints": {"mode": "on"}}
    if served.key:
        llm["api_key"] = served.key
    return HttpHub({SERVER: entry}, llm=llm)
