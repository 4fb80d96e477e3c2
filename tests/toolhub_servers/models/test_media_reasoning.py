"""tool-reasoning and tool-reasoning-os as a model sees them: every text, and what the services are asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from starlette.responses import JSONResponse, PlainTextResponse
from toolhub_servers.models import reasoning, reasoning_os

from tests.toolhub_servers.models.media_standins import KEY, Service, answer

pytestmark = pytest.mark.anyio

# As the reference servers publish it, letter by letter.
SCHEMA = (
    '{"properties": {"question": {"title": "Question", "type": "string"}}, "required": ["question"], "type": "object"}'
)
UNAVAILABLE = "Reasoning service unavailable. Please try again later."


@asynccontextmanager
async def asking(service: Service, **options: Any) -> AsyncIterator[Client]:
    async with Client(reasoning.create_server(**{"api_key": KEY, "base_url": service.url, **options})) as client:
        yield client


@asynccontextmanager
async def asking_os(service: Service, **options: Any) -> AsyncIterator[Client]:
    endpoint = {"base_url": f"{service.url}/v1/chat/completions", "model": "some-thinker", "api_key": KEY}
    async with Client(reasoning_os.create_server(**{**endpoint, **options})) as client:
        yield client


async def ask(client: Client) -> str:
    return await answer(client, "reasoning", question="why?")


@pytest.mark.parametrize("module", [reasoning, reasoning_os])
async def test_the_tool_has_the_schema_that_the_models_know(module: Any) -> None:
    (tool,) = await module.create_server().list_tools()
    assert (tool.name, json.dumps(tool.input_schema)) == ("reasoning", SCHEMA)


@pytest.mark.parametrize("module", [reasoning, reasoning_os])
async def test_the_description_says_what_it_is_not_for(module: Any) -> None:
    (tool,) = await module.create_server().list_tools()
    assert "do NOT use it for questions that are simple" in tool.description and "    question: " in tool.description


async def test_a_question_is_asked_with_a_budget_for_thinking(service: Service) -> None:
    service.answer = [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "because"}]
    async with asking(service) as client:
        assert await ask(client) == "because"
    (asked,) = service.asked
    assert asked.path == "/v1/messages"
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in asked.headers
    assert asked.json == {
        "model": "claude-3-7-sonnet-20250219",
        "max_tokens": 21000,
        "thinking": {"type": "enabled", "budget_tokens": 19000},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "why?"}]}],
    }


async def test_thinking_that_came_to_no_end_is_better_than_nothing(service: Service) -> None:
    service.answer = [{"type": "thinking", "thinking": "hm, perhaps", "signature": "x"}]
    async with asking(service) as client:
        assert await ask(client) == "hm, perhaps"


@pytest.mark.parametrize(
    ("staged", "told"),
    [
        (JSONResponse({"content": []}), "[ERROR]: Reasoning failed: Received empty response from API"),
        (
            JSONResponse({"content": [{"type": "redacted_thinking", "data": "x"}]}),
            "[ERROR]: Reasoning failed: Received empty response from API",
        ),
        (JSONResponse({"content": "x"}), "[ERROR]: Failed to parse API response: it has no content"),
        (PlainTextResponse("<html>"), "[ERROR]: Failed to parse API response: it is not JSON ('<html>')"),
        (
            JSONResponse({"type": "error", "error": {"type": "x", "message": "invalid x-api-key"}}, 401),
            "[ERROR]: Reasoning failed: {place} answered 401 Unauthorized: invalid x-api-key",
        ),
    ],
)
async def test_what_goes_wrong_is_a_text(service: Service, staged: Any, told: str) -> None:
    service.stage(staged)
    async with asking(service) as client:
        assert await ask(client) == told.format(place=service.place)


async def test_a_missing_key_is_told_by_its_variable_and_its_option(service: Service) -> None:
    async with asking(service, api_key="") as client:
        told = await ask(client)
    assert told == "[ERROR]: Reasoning failed: ANTHROPIC_API_KEY is not set (option 'api_key' of this server)"


async def test_an_overloaded_service_is_asked_again(service: Service) -> None:
    service.stage(JSONResponse({"error": {"message": "Overloaded"}}, 529))
    async with asking(service) as client:
        assert await ask(client) == "a red square"
    assert len(service.asked) == 2


def test_a_budget_that_leaves_nothing_for_the_answer_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="thinking_tokens has to be less than max_tokens"):
        reasoning.create_server(max_tokens=1000, thinking_tokens=1000)


async def test_the_open_model_is_asked_as_the_original_asks(service: Service) -> None:
    service.answer = "<think>hm</think>\n\nbecause"
    async with asking_os(service) as client:
        assert await ask(client) == "because"
    (asked,) = service.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json == {
        "model": "some-thinker",
        "messages": [{"role": "user", "content": "why?"}],
        "temperature": 0.6,
        "top_p": 0.95,
    }


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"content": "because", "reasoning_content": "hm"}, "because"),
        ({"content": None, "reasoning_content": "hm, perhaps"}, "hm, perhaps"),
        ({"content": None, "reasoning": "hm, perhaps"}, "hm, perhaps"),
        ({"content": "<think>hm</think>", "reasoning_content": None}, f"{UNAVAILABLE}\nReason: {{empty}}"),
        ({}, f"{UNAVAILABLE}\nReason: {{empty}}"),
    ],
)
async def test_an_answer_is_found_wherever_the_open_model_puts_it(service: Service, message: Any, told: str) -> None:
    service.answer = message
    async with asking_os(service) as client:
        assert await ask(client) == told.format(empty="Received empty response from API")


async def test_what_goes_wrong_with_the_open_model_is_told_below_the_text_that_models_know(service: Service) -> None:
    service.stage(JSONResponse({"detail": "no"}, 403), *[PlainTextResponse("busy", 503)] * 2, PlainTextResponse(""))
    async with asking_os(service) as client:
        told = [await ask(client) for _ in range(3)]
    assert told == [
        f"{UNAVAILABLE}\nReason: {service.place} answered 403 Forbidden: no",
        f"{UNAVAILABLE}\nReason: {service.place} answered 503 Service Unavailable (try 2): busy",
        f"{UNAVAILABLE}\nReason: it is not JSON ('nothing')",
    ]


async def test_a_service_that_never_answers_is_given_up_in_time(service: Service) -> None:
    service.go_on = anyio.Event()
    for asker in (asking, asking_os):
        async with asker(service, timeout_s=0.2) as client:
            assert (await ask(client)).endswith("did not answer completely within 0.2 s")


@pytest.mark.parametrize(
    ("option", "variable"), [("base_url", "REASONING_BASE_URL"), ("model", "REASONING_MODEL_NAME")]
)
async def test_what_the_open_model_lacks_is_named(service: Service, option: str, variable: str) -> None:
    async with asking_os(service, **{option: ""}) as client:
        told = await ask(client)
    assert told == f"{UNAVAILABLE}\nReason: {variable} is not set (option '{option}' of this server)"
