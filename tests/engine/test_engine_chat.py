"""What agents ask of an engine works on this one, though its models only babble."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import anyio
import httpx2
import openai
import pytest

from testbed.engine.install import VLLM
from testbed.engine.server import BLOCK_SIZE, EngineServer

pytestmark = pytest.mark.anyio

# One answer takes well under a second.
PATIENCE_S = 60
SEARCH: Any = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the web.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
A_SEARCH = r'<tool_call>\n\{"name": "search", "arguments": \{"query": "[a-z ]{3,20}"\}\}\n</tool_call>'


def long_prompt() -> list[Any]:
    """A prompt of many blocks that no other has begun with."""
    return [{"role": "user", "content": f"{uuid4().hex} " + "What is the capital of France? " * 60}]


async def cached_tokens(client: openai.AsyncOpenAI, messages: list[Any]) -> tuple[int, int]:
    """Tokens of the prompt that were in the cache, and all of them."""
    with anyio.fail_after(PATIENCE_S):
        answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=1)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0, answer.usage.prompt_tokens


async def test_it_is_the_version_that_was_asked_for(engine: EngineServer) -> None:
    async with httpx2.AsyncClient(base_url=engine.url, trust_env=False) as http:
        assert (await http.get("/version")).json() == {"version": VLLM}


async def test_an_answer_is_streamed(client: openai.AsyncOpenAI) -> None:
    with anyio.fail_after(PATIENCE_S):
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(texts) > 1
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 16


async def test_a_repeated_prompt_is_in_the_cache(client: openai.AsyncOpenAI) -> None:
    messages = long_prompt()
    cached, prompt = await cached_tokens(client, messages)
    assert cached == 0 and prompt > 2 * BLOCK_SIZE
    # The last token is computed in any case: its logits are needed.
    assert await cached_tokens(client, messages) == ((prompt - 1) // BLOCK_SIZE * BLOCK_SIZE, prompt)


async def test_the_cache_can_be_emptied(client: openai.AsyncOpenAI, engine: EngineServer) -> None:
    messages = long_prompt()
    await cached_tokens(client, messages)
    assert (await cached_tokens(client, messages))[0] > 0
    async with httpx2.AsyncClient(base_url=engine.url, trust_env=False) as http:
        assert (await http.post("/reset_prefix_cache")).json() == {"success": True}
    assert (await cached_tokens(client, messages))[0] == 0


@pytest.mark.parametrize("seed", range(5))
async def test_a_grammar_makes_the_model_call_a_tool(client: openai.AsyncOpenAI, seed: int) -> None:
    with anyio.fail_after(PATIENCE_S):
        answer = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Find something."}],
            tools=[SEARCH],
            max_tokens=200,
            seed=seed,
            extra_body={"structured_outputs": {"regex": A_SEARCH}},
        )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == "search"
    assert set(json.loads(call.function.arguments)) == {"query"}


CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "capital of France"}'},
}
CONVERSATION: list[Any] = [
    {"role": "system", "content": "You search."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "I will look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "Paris"},
    {"role": "tool", "tool_call_id": "1", "content": "Paris, again"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "And of Spain?"},
]


@pytest.mark.parametrize("tools", [None, [SEARCH]], ids=["without tools", "with tools"])
async def test_a_longer_conversation_starts_with_the_tokens_of_the_shorter(
    engine: EngineServer, tools: list[Any] | None
) -> None:
    async with httpx2.AsyncClient(base_url=engine.url, trust_env=False, timeout=PATIENCE_S) as http:

        async def tokens(turns: int, ask: bool) -> list[int]:
            asked = {"model": "m", "messages": CONVERSATION[:turns], "tools": tools, "add_generation_prompt": ask}
            found: list[int] = (await http.post("/tokenize", json=asked)).raise_for_status().json()["tokens"]
            return found

        whole = await tokens(len(CONVERSATION), True)
        for turns, ask in [(2, True), (3, False), (5, True), (6, False)]:
            part = await tokens(turns, ask)
            assert part == whole[: len(part)] and len(part) < len(whole)
