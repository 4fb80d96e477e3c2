"""The tool wait of `kv_waits` behind the LLM door: a real `toolhub serve`, and an agent that gives no hints itself."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
from toolhub_agent.tools import HubTools

from benchmarks.kv_waits import Others, Sizes, Trial, Way, trial
from benchmarks.prompts import open_writer
from benchmarks.result import ROOT, Json
from benchmarks.scripted import SERVER, TOOL, Served, open_side
from toolhub import connect
from toolhub.hosting import DOORS

_INHERITED = ("HOME", "PATH", "TMPDIR", "LANG")
_STARTS_WITHIN_S = 60.0
_STOPS_WITHIN_S = 20.0
_LOOK_S = 0.1
_PATIENCE_S = 300.0
# Calls that the hub has seen before, so that it knows how long the tool takes.
_SEEN = 6


def missing() -> str | None:
    """Why the door cannot be measured here."""
    if any(entry.name == "llm" for entry in importlib.metadata.entry_points(group=DOORS)):
        return None
    return "the LLM door is not installed (entry point `llm` of toolhub.doors)"


@dataclass(frozen=True)
class Hub:
    """A running `toolhub serve`. url: of its task API."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def llm_url(self) -> str:
        return f"{self.url}/llm/v1"


@asynccontextmanager
async def open_door(served: Served, sizes: Sizes) -> AsyncIterator[Trial]:
    """A trial that runs through the door; the hub's hints are never switched off and know the tool's durations."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False))
        writer = await open_writer(http, served)
        others = Others(http, served, writer, sizes)
        hub = await stack.enter_async_context(_serve(served, sizes, writer.text(sizes.result)))
        remote = await stack.enter_async_context(connect(hub.url))
        behind = Served(hub.llm_url, served.model, served.kind)
        side = await stack.enter_async_context(open_side(behind))

        async def through(way: Way) -> Json:
            name = f"door{uuid.uuid4().hex[:8]}"
            async with remote.task(name) as task:
                return await trial(side, HubTools(task), way, others, name)

        async with remote.task("seen-before") as task, anyio.create_task_group() as group:
            for number in range(_SEEN):
                group.start_soon(task.call, SERVER, TOOL, {"q": f"before {number}"})
        yield through


@asynccontextmanager
async def _serve(served: Served, sizes: Sizes, text: str) -> AsyncIterator[Hub]:
    options = {"seconds": sizes.tool_s, "text": text}
    document = {
        "servers": {SERVER: {"builtin": "benchmarks.slow_tool:create_server", "options": options, "share": "hub"}},
        "llm": served.settings().model_dump(mode="json", exclude_unset=True) | {"hints": {"mode": "on"}},
    }
    if served.key:
        document["llm"]["api_key"] = served.key
    with tempfile.TemporaryDirectory() as folder:
        document["hub"] = {"state_dir": folder}
        config, log = Path(folder, "hub.yaml"), Path(folder, "log")
        config.write_text(json.dumps(document))
        config.chmod(0o600)
        command = [sys.executable, "-m", "toolhub.cli", "serve", "--config", str(config), "--port", "0"]
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | {
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "TERM": "dumb",
            "COLUMNS": "200",
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, env=environment
            )
        try:
            yield Hub(await _wait_ready(process, log), process)
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_end, process)


async def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address of the task API, once it is announced."""
    with anyio.fail_after(_STARTS_WITHIN_S):
        while "Ctrl-C stops" not in log.read_text():
            if process.poll() is not None:
                raise RuntimeError(f"`toolhub serve` ended before it was ready:\n{log.read_text()[-2000:]}")
            await anyio.sleep(_LOOK_S)
    found = re.search(r"task API +(http\S+)/v1", log.read_text())
    if found is None:
        raise RuntimeError("`toolhub serve` does not say where its task API is")
    return found[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
