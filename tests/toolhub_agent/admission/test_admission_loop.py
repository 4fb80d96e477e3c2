"""Agents of the loop's client before a stand-in whose cache is real: least recently used blocks are evicted."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from llm_stand_in.answers import Answer
from llm_stand_in.model_server import ModelServer, open_model_server
from toolhub_agent.admission.controller import ProgramAdmission, TurnRequest
from toolhub_agent.llm import LlmClient, LlmRequest, open_llm
from toolhub_agent.types import Message

from toolhub.config.llm import AdmissionSettings, LlmSettings

pytestmark = pytest.mark.anyio
AGENTS, TURNS = 8, 6
SYSTEM = "You search the web and answer. " * 20


async def agent(llm: LlmClient, number: int) -> None:
    """Takes its turns. Its tools answer at once: an engine that is idle while tools work admits the next agent."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Task {number}"}]
    for turn in range(TURNS):
        completion = await llm.complete(LlmRequest(f"agent-{number}", messages))
        messages.append({"role": "assistant", "content": completion.text})
        messages.append({"role": "user", "content": f"Result {number}.{turn} of a tool. " * 30})
        await anyio.sleep(0)
    llm.forget(f"agent-{number}")


async def cached_share(server: ModelServer, **admission: Any) -> tuple[float, Any]:
    """Of the prompts of all agents' later turns. Also the ledger at the end."""
    server.cache.clear()
    server.counted.clear()
    settings = LlmSettings(endpoints=[server.url], model="m", metrics_interval_s=0.05, admission=admission)  # type: ignore[arg-type]
    with anyio.fail_after(60):
        async with open_llm(settings) as llm, anyio.create_task_group() as tasks:
            for number in range(AGENTS):
                tasks.start_soon(agent, llm, number)
        statistics = llm.pool.admission.statistics(server.url)
    assert len(server.counted) == AGENTS * TURNS, "a turn was lost"
    return sum(each.cached or 0 for each in server.counted) / sum(each.prompt for each in server.counted), statistics


async def test_a_turn_that_is_admitted_and_cancelled_in_the_same_moment_is_given_back():
    admission = ProgramAdmission(AdmissionSettings(enabled=True, capacity_tokens=1000), ["engine"])
    old = await admission.begin("engine", TurnRequest("old", 2400))
    new = asyncio.ensure_future(admission.begin("engine", TurnRequest("new", 2400)))
    await anyio.wait_all_tasks_blocked()
    assert old is not None
    old.release()  # admits the other one
    new.cancel()
    with pytest.raises(asyncio.CancelledError):
        await new
    statistics = admission.statistics("engine")
    assert statistics is not None and (statistics.ledger.used, statistics.ledger.running) == (0, 0)


def whole_conversation(server: ModelServer) -> int:
    """Tokens of the longest prompt that an agent sent."""
    return max(each.prompt for each in server.counted)


async def test_agents_that_do_not_fit_wait_and_find_their_tokens_again():
    with open_model_server(cache_blocks=100_000) as server:
        await cached_share(server)
        blocks = 3 * whole_conversation(server) // 16
    with open_model_server(cache_blocks=blocks) as server:
        server.load.blocks = blocks + 1
        server.usual = lambda _seen: Answer(pieces=("one " * 8,))
        without, off = await cached_share(server)
        with_admission, statistics = await cached_share(server, enabled=True)
    assert off is None
    assert statistics.waits > 0
    assert with_admission > without + 0.1
    assert (statistics.ledger.used, statistics.ledger.waiting) == (0, 0), "a program was not removed"


async def test_nothing_waits_where_all_agents_fit():
    with open_model_server(cache_blocks=100_000) as server:
        server.load.blocks = 100_000
        _, statistics = await cached_share(server, enabled=True)
    assert (statistics.waits, statistics.waited_s, statistics.ledger.pauses) == (0, 0.0, {})


async def test_agents_go_on_when_one_of_two_engines_dies():
    with open_model_server(cache_blocks=1000) as survivor:
        with open_model_server(cache_blocks=1000) as dying:
            dying.usual = lambda _seen: Answer(hold=True)
            settings = LlmSettings(
                endpoints=[dying.url, survivor.url],
                model="m",
                admission={"enabled": True, "capacity_tokens": 600},  # type: ignore[arg-type]
            )
            with anyio.fail_after(60):
                async with open_llm(settings) as llm, anyio.create_task_group() as tasks:
                    for number in range(AGENTS):
                        tasks.start_soon(agent, llm, number)
                    await dying.wait_until(lambda server: server.running > 0)
                    dying.usual = lambda _seen: Answer(status=503)
                    dying.release()
    assert {seen.headers["x-session-id"] for seen in survivor.chats} == {f"agent-{number}" for number in range(AGENTS)}
