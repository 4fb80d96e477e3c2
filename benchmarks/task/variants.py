"""The variants of playing tasks from their scripts, several at once. A worker role: each variant has its own process.

- miroflow: its pattern on the official SDK. A plain loop; a process and a handshake for the definitions of each
  server and for every call; calls one after another; of the results the last five are shown, exactly.
- drop-in: the same loop with toolhub's `ToolManager`, which is one import changed.
- toolhub: its own loop and hub: sessions kept, calls that start while the model writes, prompts cut in strides, hints.
  What remembers nothing about a task is one server for all tasks, as in configs/mirothinker_1.7.yaml.
"""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from toolhub_agent.agent import catalog_for, system_prompt_for
from toolhub_agent.history import ToolResultTrimmer
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.tool_calls.xml_calls import XmlCallReader
from toolhub_agent.tools import HubTools, ToolSource
from toolhub_agent.types import Completion

from benchmarks.common.callers import sdk_session
from benchmarks.common.result import Json, hub_config
from benchmarks.common.worker_main import Act
from benchmarks.llm.plain_client import PlainModel, open_plain_model
from benchmarks.llm.scripted_agent import Play, Served, open_side, play
from benchmarks.model import play as model_play
from benchmarks.task.times import CallTimes, TaskTimes, TurnTimes
from toolhub import Hub
from toolhub.config import AgentSettings, HintSettings
from toolhub.miroflow import ToolManager

KEEP, STRIDE = 5, 5
SHARED = ("search", "scrape")
SPAWN, DROP_IN, TOOLHUB = model_play.MIROFLOW.name, model_play.DROP_IN.name, model_play.TOOLHUB.name
Servers = Mapping[str, list[str]]


@asynccontextmanager
async def open_variant(variant: str, served: Json, servers: dict[str, list[str]]) -> AsyncIterator[Act]:
    """Answers ``{"scripts": [...], "plan": {...}}`` with ``{"tasks": [...]}``: the `TaskTimes` of each, as JSON.

    servers: the command of each. All tasks begin at once, and what their variant has to start is part of their time.
    """
    model = Served(**served)

    async def act(request: Json) -> Json:
        began = time.perf_counter()
        setup = TaskSetup(model, servers, request["plan"], lambda: time.perf_counter() - began)
        found = await _VARIANTS[variant](setup, request["scripts"])
        return {"tasks": [times.to_json() for times in found]}

    yield act


@dataclass(frozen=True)
class TaskSetup:
    """What a variant works with. now: seconds since all tasks began."""

    served: Served
    servers: Servers
    plan: Json
    now: Callable[[], float]


class Timed:
    """Wraps tools and notes when their calls begin and end."""

    def __init__(self, tools: ToolSource, setup: TaskSetup, times: TaskTimes) -> None:
        self._tools = tools
        self._setup = setup
        self._times = times

    async def get_all_tool_definitions(self) -> list[Json]:
        return await self._tools.get_all_tool_definitions()

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        began, planned = self._setup.now(), self._setup.plan[arguments["q"]]
        found = await self._tools.execute_tool_call(server_name=server_name, tool_name=tool_name, arguments=arguments)
        if found.get("result") != planned["text"]:
            raise RuntimeError(f"{arguments['q']} was answered with {str(found)[:300]}; a wrong answer must not count")
        self._times.calls.append(CallTimes(began, self._setup.now(), planned["seconds"], tool_name))
        return found


class SpawnTools:
    """Works as MiroFlow's ToolManager: a new process for the definitions of each server and for every call."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def get_all_tool_definitions(self) -> list[Json]:
        return [{"name": name, "tools": await self._tools_of(name)} for name in self._servers]

    async def _tools_of(self, server: str) -> list[Json]:
        async with sdk_session({"argv": self._servers[server]}) as session:
            found = (await session.list_tools()).tools
        return [{"name": tool.name, "description": tool.description, "schema": tool.input_schema} for tool in found]

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Json) -> Json:
        async with sdk_session({"argv": self._servers[server_name]}) as session:
            result = await session.call_tool(tool_name, arguments)
            return {"server_name": server_name, "tool_name": tool_name, "result": result.content[0].text}


# --- the plain loop -------------------------------------------------------------------------------------------------


async def _plain(setup: TaskSetup, scripts: list[Json], open_tools: Callable[[], ToolSource]) -> list[TaskTimes]:
    async with open_plain_model(setup.served) as model, anyio.create_task_group() as group:
        found = [TaskTimes() for _ in scripts]
        for script, times in zip(scripts, found, strict=True):
            group.start_soon(_converse, setup, model, Timed(open_tools(), setup, times), script, times)
    return found


async def _converse(setup: TaskSetup, model: PlainModel, tools: ToolSource, script: Json, times: TaskTimes) -> None:
    settings = AgentSettings(system_prompt=script["objective"])
    catalog = catalog_for(await tools.get_all_tool_definitions(), settings)
    system = system_prompt_for(catalog, settings, script["objective"], datetime.date.today())
    view = ToolResultTrimmer(KEEP)
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": "What is it?"}]
    for answer in script["answers"]:
        began = setup.now()
        said = await model.ask(view.view(messages).messages, answer)
        usage = said.usage
        times.turns.append(
            TurnTimes(
                began, began + said.first_s, setup.now(), usage.prompt_tokens, said.cached, usage.completion_tokens
            )
        )
        results = []
        for call in XmlCallReader().feed(said.text):
            told = await tools.execute_tool_call(call.server, call.tool, dict(call.arguments))
            results.append(told["result"])
        messages += [{"role": "assistant", "content": said.text}, {"role": "user", "content": "\n".join(results)}]


async def _spawn(setup: TaskSetup, scripts: list[Json]) -> list[TaskTimes]:
    return await _plain(setup, scripts, lambda: SpawnTools(setup.servers))


async def _drop_in(setup: TaskSetup, scripts: list[Json]) -> list[TaskTimes]:
    configs = [{"name": name, "params": {"command": argv[0], "args": argv[1:]}} for name, argv in setup.servers.items()]
    return await _plain(setup, scripts, lambda: ToolManager(configs))


# --- toolhub --------------------------------------------------------------------------------------------------------


async def _toolhub(setup: TaskSetup, scripts: list[Json]) -> list[TaskTimes]:
    found = {script["task"]: TaskTimes() for script in scripts}
    shared = {"share": "hub", "concurrency": 64}
    entries = {
        name: {"command": argv[0], "args": argv[1:], **(shared if name in SHARED else {})}
        for name, argv in setup.servers.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Hub(hub_config(entries, Path(folder))) as hub,
            open_side(setup.served, HintSettings()) as side,
            anyio.create_task_group() as group,
        ):
            hub.observers.append(side.hints.durations)

            def note(request: LlmRequest, completion: Completion) -> None:
                times = next(times for task, times in found.items() if request.session.startswith(f"{task}-"))
                times.turns.append(_turn(completion, setup.now()))

            async def run(script: Json) -> None:
                name = script["task"]
                async with hub.task(name) as task:
                    tools = Timed(HubTools(task), setup, found[name])
                    settings = {"keep_tool_result": KEEP, "trim_every": STRIDE}
                    await play(side, Play(name, script["objective"], script["answers"], tools, settings=settings))

            side.llm.on_turn.append(note)
            for script in scripts:
                group.start_soon(run, script)
    return list(found.values())


def _turn(completion: Completion, ended: float) -> TurnTimes:
    usage, began = completion.usage, ended - completion.seconds - completion.waited
    return TurnTimes(
        began,
        ended - completion.seconds + completion.ttft,
        ended,
        usage.prompt_tokens,
        usage.cached_tokens or 0,
        usage.completion_tokens,
    )


_VARIANTS: dict[str, Callable[[TaskSetup, list[Json]], Awaitable[list[TaskTimes]]]] = {
    SPAWN: _spawn,
    DROP_IN: _drop_in,
    TOOLHUB: _toolhub,
}
