"""Prefix discipline with a real chat template, and what a real prefix cache makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import anyio
import httpx2
import openai
import pytest
from toolhub_agent.history import History, ToolResultTrimmer
from toolhub_agent.prefix_report import PrefixReport
from toolhub_agent.types import Completion, Message, ToolCall, ToolOutcome, Usage

from testbed.engine.server import BLOCK_SIZE, EngineServer

pytestmark = pytest.mark.anyio

PATIENCE_S = 120
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "web-search", "parameters": {"type": "object", "properties": {}}}}
]


def begun(protocol: Any) -> History:
    history = History(f"You search. {uuid4().hex}", protocol=protocol)
    history.append_user("Who was it?")
    return history


def add_turn(history: History, number: int, *, native: bool) -> None:
    """An answer with two calls, and their results."""
    calls = [ToolCall(i, "web", "search", {}, id=f"call-{number}-{i}") for i in range(2)]
    function = {"name": "web-search", "arguments": '{"q": "x"}'}
    wire = tuple({"id": call.id, "type": "function", "function": function} for call in calls)
    history.append_assistant(Completion(f"<think>turn {number}</think> I search.", tool_calls=wire if native else ()))
    history.append_results([ToolOutcome(call, f"result {number} " * 60) for call in calls])


class Tokens:
    """Prompts as the engine's own template and tokenizer make them."""

    def __init__(self, engine: EngineServer, tools: list[Any] | None) -> None:
        self._url = f"{engine.url}/tokenize"
        self._body = {"model": engine.name, "add_generation_prompt": True} | ({"tools": tools} if tools else {})

    def __call__(self, messages: Sequence[Message]) -> list[int]:
        body = self._body | {"messages": list(messages)}
        return httpx2.post(self._url, json=body, trust_env=False, timeout=PATIENCE_S).json()["tokens"]


@pytest.mark.parametrize("protocol", ["xml", "native"])
def test_every_turn_s_prompt_is_a_token_prefix_of_the_next(engine: EngineServer, protocol: str) -> None:
    history, native = begun(protocol), protocol == "native"
    tokens, before = Tokens(engine, TOOLS if native else None), []
    for number in range(6):
        now = tokens(history.messages())
        assert now[: len(before)] == before
        assert len(now) > len(before)
        before = now
        add_turn(history, number, native=native)


async def ask(client: openai.AsyncOpenAI, messages: list[Any]) -> Usage:
    with anyio.fail_after(PATIENCE_S):
        answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=1)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    usage = answer.usage
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens or 0)


async def test_the_engine_reuses_what_the_report_says_it_could(
    engine: EngineServer, client: openai.AsyncOpenAI
) -> None:
    history, report = begun("xml"), PrefixReport(Tokens(engine, None))
    keep = ToolResultTrimmer(2, trim_every=2)
    for number in range(1, 8):
        view = keep.view(history.messages())
        usage = await ask(client, view.messages)
        turn = report.add(number, view.messages, {}, usage)
        assert turn.cached is not None and abs(turn.cached - turn.reusable) <= BLOCK_SIZE
        add_turn(history, number, native=False)
    assert [turn.broken_by for turn in report.turns] == [None] * 5 + ["tool result omitted", None]
