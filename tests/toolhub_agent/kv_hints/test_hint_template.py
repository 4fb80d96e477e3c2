"""Which prompts may be prefetched at all: the template check, on renderers that behave like real templates."""

from __future__ import annotations

from typing import Any

import pytest
from llm_stand_in.prefix_cache import render
from toolhub_agent.kv_hints.engines import adapter_for
from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.kv_hints.template import TRIALS, TemplateChecks, TemplateVerdict, kind_of, results_for, sample_of

from tests.toolhub_agent.kv_hints.hint_stage import URL, Engine, virtual_time

pytestmark = [pytest.mark.anyio, pytest.mark.quick]

XML = {"role": "assistant", "content": "<think>why</think><use_mcp_tool>"}
NATIVE = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": f"c{n}", "type": "function", "function": {"name": "s-t", "arguments": "{}"}} for n in range(2)
    ],
}
START = ({"role": "system", "content": "be good"}, {"role": "user", "content": "question"})


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


def prompt_of(*messages: Any, **body: Any) -> Prompt:
    return Prompt((*START, *messages), {"model": "m", **body}, URL)


async def verdict_on(prompt: Prompt, engine: Engine) -> TemplateVerdict:
    async with engine.client() as http:
        return await TemplateChecks().check(http, adapter_for("vllm", URL), prompt)


def drops_past_thinking(body):
    """As Qwen3's template: thinking stays only after the last message of the user."""
    messages = body["messages"]
    last = max(at for at, message in enumerate(messages) if message["role"] == "user")
    return render({**body, "messages": [_without_thinking(m) if at < last else m for at, m in enumerate(messages)]})


def _without_thinking(message):
    return {**message, "content": (message.get("content") or "").split("</think>")[-1]}


@pytest.mark.parametrize("assistant", [XML, NATIVE])
async def test_a_template_that_only_appends_is_recognised(assistant):
    assert await verdict_on(prompt_of(assistant), Engine()) is TemplateVerdict.APPEND_ONLY


async def test_a_template_that_drops_past_thinking_rewrites_xml_agents_but_not_native_ones():
    engine = Engine(renders=drops_past_thinking)
    assert await verdict_on(prompt_of(XML), engine) is TemplateVerdict.REWRITES
    assert await verdict_on(prompt_of(NATIVE), engine) is TemplateVerdict.APPEND_ONLY


async def test_a_server_without_a_tokenizer_page_leaves_it_open():
    engine = Engine(refuse=lambda path, body: (404, {}))
    assert await verdict_on(prompt_of(XML), engine) is TemplateVerdict.UNKNOWN


async def test_the_question_is_as_the_server_will_be_asked_later():
    engine = Engine()
    await verdict_on(prompt_of(NATIVE, tools=[{"x": 1}], chat_template_kwargs={"thinking": False}), engine)
    first, second = engine.asked("/tokenize")
    assert first["tools"] == [{"x": 1}]
    assert first["chat_template_kwargs"] == {"thinking": False}
    assert first["add_generation_prompt"] is second["add_generation_prompt"] is False
    assert [message["role"] for message in second["messages"][len(first["messages"]) :]] == ["tool", "tool"]


def test_results_follow_the_calls_of_the_turn():
    assert [result["tool_call_id"] for result in results_for(NATIVE)] == ["c0", "c1"]
    assert results_for(XML)[0]["role"] == "user"


def test_of_a_long_history_only_what_shows_the_rule_is_sent():
    turns = [message for n in range(50) for message in (XML, {"role": "user", "content": f"result {n}"})]
    sample = sample_of((*START, *turns))
    assert sample == (*START, XML, {"role": "user", "content": "result 48"}, XML)


def test_prompts_are_of_one_kind_when_only_their_texts_differ():
    other = {**XML, "content": "<think>else</think>"}
    assert kind_of(prompt_of(XML)) == kind_of(prompt_of(other))
    assert kind_of(prompt_of(XML)) != kind_of(prompt_of(NATIVE))
    assert kind_of(prompt_of(XML)) != kind_of(prompt_of(XML, chat_template_kwargs={"enable_thinking": False}))


@pytest.mark.parametrize(("cached", "verdict"), [(9_500, TemplateVerdict.APPEND_ONLY), (128, TemplateVerdict.REWRITES)])
async def test_where_nobody_can_be_asked_the_cache_tells_after_some_trials(cached, verdict):
    checks, prompt = TemplateChecks(), prompt_of(XML)
    async with Engine(refuse=lambda path, body: (404, {})).client() as http:
        await checks.check(http, adapter_for("vllm", URL), prompt)
    for _ in range(TRIALS):
        checks.measured(prompt, 10_000, cached)
    assert checks.verdict(prompt) is verdict
