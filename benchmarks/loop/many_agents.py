"""Many agents of two turns with a common prompt: toolhub's loop and hub, beside a loop that keeps its slot.

The plain loop asks the model, calls the search and asks again, and holds one of the engine's slots all the while. Ours
holds a slot only while the model writes, computes the common prompt once before all start, and searches through a hub
that asks the search service once for equal queries.
"""

from __future__ import annotations

import datetime
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
from toolhub_agent.agent import catalog_for, system_prompt_for
from toolhub_agent.tool_calls.xml_calls import XmlCallReader
from toolhub_agent.tools import HubTools

from benchmarks.common.measure import interleaved
from benchmarks.common.result import Json, hub_config
from benchmarks.common.subprocess_worker import Worker
from benchmarks.llm.plain_client import PlainAnswer, open_plain_model
from benchmarks.llm.prompts import Writer, open_writer
from benchmarks.llm.scripted_agent import Play, Served, called, open_side, play
from toolhub import Hub
from toolhub.config import AgentSettings, HintSettings

# A short name: what the model has to write costs the engine more here than on an accelerator, beside a tool as slow.
SERVER, TOOL = "web", "google_search"
BUILTIN = "search_and_scrape_webpage"
_LAST_WORD = "Done."
_KEY = "none is needed here"
_PATIENCE_S = 600.0
PLAIN, OURS = "plain", "ours"


@dataclass(frozen=True)
class ManyAgents:
    """agents: of two turns each. slots: how many requests (or plain agents) run at once. queries: different ones."""

    name: str
    agents: int
    slots: int
    tool_s: float
    queries: int
    shared: int = 2048
    """Tokens of the prompt that all begin with."""


@dataclass(frozen=True)
class LoopSetup:
    """What both loops work with. search_url: of the search service; see `loopback`."""

    served: Served
    case: ManyAgents
    writer: Writer
    service: Worker
    search_url: str


async def measure_many_agents(served: Served, case: ManyAgents, rounds: int) -> dict[str, list[Json]]:
    """Run both loops in turns. All prompts are new in each round, so no round warms up another.

    A round is ``{"wall_s", "executions", "prompt", "cached", "written", "cpu_s", "prefix_s"}``: executions are those
    that the search service counts; cpu_s is that of this process, agents and hub; prefix_s is what computing the
    common prompt beforehand took, part of wall_s.
    """
    found: dict[str, list[Json]] = {}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False))
        writer = await open_writer(http, served)
        service = stack.enter_context(
            Worker("benchmarks.common.search_endpoint:open_endpoint", {"answer_s": case.tool_s})
        )
        setup = LoopSetup(served, case, writer, service, f"http://127.0.0.1:{service.ask({})['port']}")
        loops: dict[str, Callable[[LoopSetup], Awaitable[Json]]] = {PLAIN: _run_plain, OURS: _run_ours}
        for _, variant in interleaved((PLAIN, OURS), rounds - 1):
            cpu = time.process_time()
            told = await loops[variant](setup)
            told |= {"cpu_s": time.process_time() - cpu, "executions": service.ask({})["requests"]}
            found.setdefault(variant, []).append(told)
    return found


def _queries(case: ManyAgents) -> list[str]:
    """Return a query for each agent. They are new in each round; otherwise the hub would answer from its cache."""
    nonce = uuid.uuid4().hex[:4]
    return [f"{nonce} {number % case.queries}" for number in range(case.agents)]


# --- ours ---------------------------------------------------------------------------------------------------------


async def _run_ours(setup: LoopSetup) -> Json:
    case = setup.case
    objective, queries = setup.writer.fresh(case.shared), _queries(case)
    async with (
        _open_hub(setup.search_url) as hub,
        open_side(setup.served, HintSettings(), max_in_flight=case.slots) as side,
    ):
        began = anyio.current_time()
        async with hub.task("warm-up") as task:
            definitions = await HubTools(task).get_all_tool_definitions()
        settings = AgentSettings(system_prompt=objective)
        system = _system(definitions, settings)
        await side.llm.prefetch_prefix([{"role": "system", "content": system}], {})
        prefix_s = anyio.current_time() - began

        async def agent(query: str) -> str:
            name = f"agents{uuid.uuid4().hex[:8]}"
            async with hub.task(name) as task:
                script = [called(SERVER, TOOL, {"q": query}), _LAST_WORD]
                await play(side, Play(name, objective, script, HubTools(task)))
            return name

        async with anyio.create_task_group() as group:
            for query in queries:
                group.start_soon(agent, query)
        wall = anyio.current_time() - began
        usages = [turn.usage for turns in side.turns.values() for turn in turns]
    return {
        "wall_s": wall,
        "prefix_s": prefix_s,
        "prompt": sum(usage.prompt_tokens for usage in usages),
        "cached": sum(usage.cached_tokens or 0 for usage in usages),
        "written": sum(usage.completion_tokens for usage in usages),
    }


def _system(definitions: list[Json], settings: AgentSettings) -> str:
    """The system prompt that all agents have."""
    assert settings.system_prompt is not None
    return system_prompt_for(
        catalog_for(definitions, settings), settings, settings.system_prompt, datetime.date.today()
    )


@asynccontextmanager
async def _open_hub(search_url: str) -> AsyncIterator[Hub]:
    """Open a hub with one search server for all tasks, as in configs/mirothinker_1.7.yaml."""
    server = {
        "builtin": BUILTIN,
        "share": "hub",
        "concurrency": 64,
        "options": {"serper": {"api_key": _KEY, "base_url": search_url}},
        "tools": {"deny": ["sogou_search"], "policy": {TOOL: {"read_only": True}}},
    }
    with tempfile.TemporaryDirectory() as folder:
        async with Hub(hub_config({SERVER: server}, Path(folder))) as hub:
            yield hub


# --- plain --------------------------------------------------------------------------------------------------------


async def _run_plain(setup: LoopSetup) -> Json:
    """Run the plain loop: the SDK's client, one HTTP client for the search, a semaphore around each agent."""
    case = setup.case
    objective, queries = setup.writer.fresh(case.shared), _queries(case)
    async with AsyncExitStack() as stack:
        async with _open_hub(setup.search_url) as hub, hub.task("definitions") as task:
            definitions = await HubTools(task).get_all_tool_definitions()
        model = await stack.enter_async_context(open_plain_model(setup.served))
        limits = httpx2.Limits(max_connections=case.agents)
        search = await stack.enter_async_context(
            httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False, limits=limits)
        )
        system = _system(definitions, AgentSettings(system_prompt=objective))
        slots = anyio.Semaphore(case.slots)
        answers: list[PlainAnswer] = []

        async def agent(query: str) -> None:
            async with slots:
                messages: list[Any] = [
                    {"role": "system", "content": system},
                    {"role": "user", "content": "What is it?"},
                ]
                text = await ask(messages, called(SERVER, TOOL, {"q": query}))
                (call,) = XmlCallReader().feed(text)
                found = await search.post(
                    f"{setup.search_url}/search", json={"num": 10, **call.arguments}, headers={"X-API-KEY": _KEY}
                )
                result = found.raise_for_status().text
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": result}]
                await ask(messages, _LAST_WORD)

        async def ask(messages: list[Any], answer: str) -> str:
            said = await model.ask(messages, answer)
            answers.append(said)
            return said.text

        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            for query in queries:
                group.start_soon(agent, query)
        wall = anyio.current_time() - began
    return _plain_sums(wall, answers)


def _plain_sums(wall: float, answers: list[PlainAnswer]) -> Json:
    return {
        "wall_s": wall,
        "prefix_s": 0.0,
        "written": sum(each.usage.completion_tokens for each in answers),
        "prompt": sum(each.usage.prompt_tokens for each in answers),
        "cached": sum(each.cached for each in answers),
    }
