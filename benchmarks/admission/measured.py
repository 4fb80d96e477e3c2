"""The agents of a `Workload` on a real engine, under one policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
from toolhub_agent.llm.client import LlmRequest
from toolhub_agent.types import Usage

from benchmarks.admission.programs import AgentReport, AgentTrace, RunReport, Workload
from benchmarks.common.hub_process import HttpHub
from benchmarks.common.result import Json
from benchmarks.llm.plain_client import open_plain_model
from benchmarks.llm.prompts import Writer
from benchmarks.llm.scripted_agent import Served, open_side
from toolhub.config.agent import Sampling

# A turn of an agent without a place waits for all others.
_PATIENCE_S = 600.0
# A model with random weights writes a text with about three times the tokens that a tokenizer reads from it.
_SPELLING = 3


@dataclass(frozen=True)
class AgentScript:
    """system: the same for all agents. question: of this agent. answers, results: of each turn, and after it."""

    name: str
    system: str
    question: str
    answers: Sequence[str]
    results: Sequence[str]

    @classmethod
    def of(cls, trace: AgentTrace, workload: Workload, writer: Writer) -> AgentScript:
        """The same texts each time."""
        name, turns = trace.name, range(len(trace.turns))
        return cls(
            name,
            writer.text(workload.shared, seed="shared"),
            f"{name}: {writer.text(workload.question, seed=name)}",
            [f"{turn} {writer.text(workload.answer // _SPELLING, seed=f'{name} says {turn}')}" for turn in turns],
            [writer.text(workload.result, seed=f"{name} reads {turn}") for turn in turns[1:]],
        )


# What a turn is: the conversation's name, its messages, and the only answer that the engine allows.
AskModel = Callable[[str, list[Any], str], Awaitable[Usage]]


@dataclass(frozen=True)
class ModelClient:
    """ended: called with the name of each conversation that is over. pauses: so far; None: not known."""

    ask: AskModel
    ended: Callable[[str], None]
    pauses: Callable[[], int | None]


@asynccontextmanager
async def open_client(served: Served, *, has_admission: bool) -> AsyncIterator[ModelClient]:
    """toolhub's client of a model server, as the agent loop uses it."""
    more: Json = {"admission": {"enabled": True}} if has_admission else {}
    async with open_side(served, total_timeout_s=_PATIENCE_S, attempt_timeout_s=_PATIENCE_S, **more) as side:

        async def ask(name: str, messages: list[Any], answer: str) -> Usage:
            body = {"max_tokens": 1500, **served.only(answer)}
            request = LlmRequest(name, list(messages), body, Sampling(temperature=0.0, top_p=None))
            return (await side.llm.complete(request)).usage

        def pauses() -> int | None:
            found = [each.admission for each in side.llm.pool.statistics().values() if each.admission is not None]
            return sum(sum(each.ledger.pauses.values()) for each in found)

        yield ModelClient(ask, side.llm.forget, pauses)


@asynccontextmanager
async def open_proxy_client(served: Served) -> AsyncIterator[ModelClient]:
    """The openai SDK in front of `toolhub serve`. The agents do not know of toolhub; the proxy finds their turns."""
    llm = served.settings().model_dump(mode="json", exclude_unset=True) | {"admission": {"enabled": True}}
    if served.key:
        llm["api_key"] = served.key
    async with AsyncExitStack() as stack:
        hub = stack.enter_context(HttpHub({}, llm=llm))
        behind = Served(f"{hub.url}/llm/v1", served.model, served.kind)
        model = await stack.enter_async_context(open_plain_model(behind))

        async def ask(name: str, messages: list[Any], answer: str) -> Usage:
            said = await model.ask(messages, answer)
            return Usage(said.usage.prompt_tokens, said.usage.completion_tokens, said.cached)

        yield ModelClient(ask, lambda name: None, lambda: None)


async def warm_up(client: ModelClient, scripts: Sequence[AgentScript]) -> None:
    """Let the model write every answer once: an engine prepares each prescribed text when it first comes."""

    async def ask(name: str, answer: str) -> None:
        await client.ask(name, [{"role": "user", "content": name}], answer)
        client.ended(name)

    async with anyio.create_task_group() as group:
        for script in scripts:
            for number, answer in enumerate(script.answers):
                group.start_soon(ask, f"warm-up {number} of {script.name}", answer)


async def run_agents(
    served: Served,
    client: ModelClient,
    scripts: Sequence[AgentScript],
    traces: Sequence[AgentTrace],
    at_most: int | None = None,
) -> RunReport:
    """Empty the engine's cache, and let all agents begin. at_most: so many work at a time; None: all.

    Raises httpx2.HTTPError if the cache cannot be emptied.
    """
    async with httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http:
        (await http.post(f"{served.root}/reset_prefix_cache")).raise_for_status()
    before = client.pauses()
    places = anyio.Semaphore(at_most or len(traces))
    reports = [AgentReport() for _ in traces]
    began = anyio.current_time()

    async def run(script: AgentScript, trace: AgentTrace, report: AgentReport) -> None:
        async with places:
            await _converse(client, script, trace, report)
        report.task_s = anyio.current_time() - began

    async with anyio.create_task_group() as group:
        for each in zip(scripts, traces, reports, strict=True):
            group.start_soon(run, *each)
    after = client.pauses()
    return RunReport(reports, None if before is None or after is None else after - before)


async def _converse(client: ModelClient, script: AgentScript, trace: AgentTrace, report: AgentReport) -> None:
    messages = [{"role": "system", "content": script.system}, {"role": "user", "content": script.question}]
    for number, (turn, answer) in enumerate(zip(trace.turns, script.answers, strict=True)):
        if number:
            messages.append({"role": "user", "content": script.results[number - 1]})
        report.usages.append(await client.ask(script.name, messages, answer))
        messages.append({"role": "assistant", "content": answer})
        await anyio.sleep(turn.wait_s)
    client.ended(script.name)
