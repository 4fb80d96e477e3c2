"""`scrape_and_extract_info`: its schema, its results, and every way in which it fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from starlette.responses import JSONResponse
from toolhub_servers.scrape import jina_scrape_llm_summary
from toolhub_servers.scrape.model import DATASET_REFUSAL
from website import standins
from website.site import Site

from tests.toolhub_servers.scrape.scrape_stage import extracted, hosted, serving, summary_options
from toolhub.shared_resources import SharedResources

pytestmark = pytest.mark.anyio

# As the reference server publishes it, letter by letter.
SCHEMA = (
    '{"properties": {"url": {"title": "Url", "type": "string"}, '
    '"info_to_extract": {"title": "Info To Extract", "type": "string"}, '
    '"custom_headers": {"additionalProperties": {"type": "string"}, "default": null, "title": "Custom Headers", '
    '"type": "object"}}, "required": ["url", "info_to_extract"], "title": "scrape_and_extract_infoArguments", '
    '"type": "object"}'
)
LLM = "Jina Scrape and Extract Info: "

Serve = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def serve(site: Site, resources: SharedResources) -> Serve:
    @asynccontextmanager
    async def serve_(**options: Any) -> AsyncIterator[Client]:
        server = jina_scrape_llm_summary.create_server(context=hosted(resources), **summary_options(site, **options))
        async with serving(server) as client:
            yield client

    return serve_


def asked(site: Site) -> list[dict[str, Any]]:
    """The payloads that the model's endpoint got."""
    return [json.loads(seen.body) for seen in site.asked("/v1/")]


def failure(url: str, error: str) -> dict[str, Any]:
    return {
        "success": False,
        "url": url,
        "extracted_info": "",
        "error": error,
        "scrape_stats": {},
        "tokens_used": 0,
    }


async def test_the_tool_has_the_schema_that_the_models_know() -> None:
    (tool,) = await jina_scrape_llm_summary.create_server().list_tools()
    assert tool.name == "scrape_and_extract_info"
    assert json.dumps(tool.input_schema) == SCHEMA
    assert tool.output_schema is None


async def test_the_model_is_given_the_page_and_its_answer_comes_back(serve: Serve, site: Site) -> None:
    async with serve() as client:
        result = await extracted(client, f"{site.url}/article", "How deep is it?")
    page = bytes(standins.jina_page(f"{site.url}/article").body).decode()
    assert list(result) == [
        "success", "url", "extracted_info", "error", "scrape_stats", "model_used", "tokens_used",
    ]  # fmt: skip
    assert result == {
        "success": True,
        "url": f"{site.url}/article",
        "extracted_info": "The answer is 42.",
        "error": "",
        "scrape_stats": {
            "line_count": page.count("\n") + 1,
            "char_count": len(page),
            "last_char_line": page.count("\n") + 1,
            "all_content_displayed": True,
        },
        "model_used": "qwen3-14b",
        "tokens_used": 123,
    }
    (payload,) = asked(site)
    (message,) = payload.pop("messages")
    assert payload == {"model": "qwen3-14b", "max_tokens": 8192, "temperature": 1.0}
    assert message["role"] == "user"
    assert page in message["content"] and "How deep is it?" in message["content"]
    assert site.asked("/v1/")[0].headers["authorization"] == f"Bearer {standins.CHAT_KEY}"


async def test_content_with_braces_is_no_template(serve: Serve, site: Site) -> None:
    site.jina.then(standins.status(200, "{info} {0} {content}"))
    async with serve() as client:
        await extracted(client, f"{site.url}/article", "What is {x}?")
    assert "{info} {0} {content}" in asked(site)[0]["messages"][0]["content"]


async def test_an_endpoint_without_a_key_gets_none(serve: Serve, site: Site) -> None:
    async with serve(summary_llm_api_key="") as client:
        assert (await extracted(client, f"{site.url}/article"))["success"]
    assert "authorization" not in site.asked("/v1/")[0].headers


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("gpt-4.1", {"max_completion_tokens": 8192}),
        ("gpt-5-mini", {"max_completion_tokens": 8192, "service_tier": "flex", "reasoning_effort": "minimal"}),
        ("gpt5", {"max_completion_tokens": 8192, "service_tier": "flex", "reasoning_effort": "minimal"}),
        ("Qwen3-32B", {"max_tokens": 8192, "temperature": 1.0}),
    ],
)
async def test_each_family_of_models_gets_its_parameters(
    serve: Serve, site: Site, model: str, parameters: dict[str, Any]
) -> None:
    async with serve(summary_llm_model_name=model) as client:
        await extracted(client, f"{site.url}/article")
    payload = asked(site)[0]
    del payload["messages"]
    assert payload == {"model": model, **parameters}


async def test_the_service_tier_is_dropped_when_the_endpoint_refuses(serve: Serve, site: Site) -> None:
    site.chat.then(standins.status(400, "Invalid service_tier"))
    async with serve(summary_llm_model_name="gpt-5") as client:
        assert (await extracted(client, f"{site.url}/article"))["success"]
    first, second = asked(site)
    assert first.pop("service_tier") == "flex"
    assert first == second


async def test_raw_bytes_of_a_pdf_never_reach_the_model(serve: Serve, site: Site) -> None:
    site.jina.then(standins.status(422))
    async with serve() as client:
        assert (await extracted(client, f"{site.url}/report.pdf"))["success"]
    content = asked(site)[0]["messages"][0]["content"]
    assert "The turnover was 17 million." in content and "endobj" not in content


async def test_raw_html_never_reaches_the_model(serve: Serve, site: Site) -> None:
    async with serve(jina_api_key="") as client:
        assert (await extracted(client, f"{site.url}/article"))["success"]
    content = asked(site)[0]["messages"][0]["content"]
    assert "80,000 tonnes" in content and "<p>" not in content and "color: red" not in content


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("<think>Let me see.\nWell.</think>\n\nIt is 9 m.", "It is 9 m."),
        ("Let me see.</think>It is 9 m.", "It is 9 m."),
        ("It is <think>hm</think>9 m.", "It is 9 m."),
    ],
)
async def test_what_a_model_thinks_is_left_out(serve: Serve, site: Site, said: str, kept: str) -> None:
    site.chat.then(standins.completion(said))
    async with serve() as client:
        assert (await extracted(client, f"{site.url}/article"))["extracted_info"] == kept


async def test_content_is_cut_to_what_the_model_takes_and_the_statistics_tell(serve: Serve, site: Site) -> None:
    site.jina.then(standins.status(200, "x" * 99 + "\n" + "y" * 900_000))
    async with serve() as client:
        result = await extracted(client, f"{site.url}/article")
    assert result["scrape_stats"] == {
        "line_count": 2,
        "char_count": 900_100,
        "last_char_line": 2,
        "all_content_displayed": False,
    }
    content = asked(site)[0]["messages"][0]["content"]
    assert content.count("y") - content.replace("y" * 409_500, "").count("y") == 409_500
    assert "y" * 409_501 not in content


async def test_a_smaller_context_takes_less(serve: Serve, site: Site) -> None:
    site.jina.then(standins.status(200, "y" * 100_000))
    async with serve(summary_context_tokens=8192 + 2048 + 1000) as client:
        await extracted(client, f"{site.url}/article")
    content = asked(site)[0]["messages"][0]["content"]
    assert "y" * 4000 + "[...truncated]" in content and "y" * 4001 not in content


@pytest.mark.parametrize("answers", [[400, 400], [200, 400]])
async def test_content_that_is_too_long_is_shortened_until_it_fits(
    serve: Serve, site: Site, answers: list[int]
) -> None:
    site.jina.then(standins.status(200, "y" * 200_000))
    site.chat.then(*(standins.overflow(status) for status in answers))
    async with serve() as client:
        result = await extracted(client, f"{site.url}/article")
    assert result["success"] and result["extracted_info"] == "The answer is 42."
    contents = [payload["messages"][0]["content"] for payload in asked(site)]
    assert [content.count("y" * 40_960) for content in contents] == [4, 3, 1]
    assert [content.count("[...truncated]") for content in contents] == [0, 1, 1]


async def test_short_content_that_is_too_long_all_the_same_is_halved(serve: Serve, site: Site) -> None:
    site.jina.then(standins.status(200, "y" * 1000))
    site.chat.then(standins.overflow())
    async with serve() as client:
        assert (await extracted(client, f"{site.url}/article"))["success"]
    content = asked(site)[1]["messages"][0]["content"]
    assert "y" * 500 + "[...truncated]" in content


async def test_content_that_never_fits_is_told_after_four_requests(serve: Serve, site: Site) -> None:
    site.chat.then(*[standins.overflow() for _ in range(9)])
    async with serve() as client:
        result = await extracted(client, f"{site.url}/article")
    assert result["error"].startswith(f"{LLM}Unexpected error during LLM API call: ")
    assert standins.OVERFLOW in result["error"]
    assert len(asked(site)) == 4


async def test_an_answer_that_goes_in_circles_is_asked_for_again(serve: Serve, site: Site) -> None:
    site.chat.then(standins.circular(), standins.circular())
    async with serve() as client:
        assert (await extracted(client, f"{site.url}/article"))["extracted_info"] == "The answer is 42."
    assert len(asked(site)) == 3


async def test_an_answer_that_always_goes_in_circles_is_better_than_none(serve: Serve, site: Site) -> None:
    site.chat.then(*[standins.circular() for _ in range(9)])
    async with serve() as client:
        result = await extracted(client, f"{site.url}/article")
    assert result["success"] and result["extracted_info"].startswith("It begins well.")
    assert len(asked(site)) == 4


async def test_passing_trouble_of_the_endpoint_is_overcome(serve: Serve, site: Site) -> None:
    site.chat.then(standins.status(429, retry_after="0"), standins.status(503))
    async with serve() as client:
        assert (await extracted(client, f"{site.url}/article"))["success"]
    assert len(asked(site)) == 3


async def test_a_timeout_of_the_model_is_told_and_not_tried_again(serve: Serve, site: Site) -> None:
    site.chat.then(standins.SLOW)
    async with serve(summary_s=0.5) as client:
        result = await extracted(client, f"{site.url}/article")
    assert result["error"].startswith(f"{LLM}Unexpected error during LLM API call: ")
    assert "within 0.5 s" in result["error"]
    assert result["model_used"] == "qwen3-14b" and result["scrape_stats"]["line_count"] > 1
    assert len(asked(site)) == 1


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (standins.status(200, "not json"), "Failed to parse LLM API response: Expecting value"),
        (JSONResponse({"error": {"message": "overheated"}}), "LLM API error: {'message': 'overheated'}"),
        (JSONResponse({"choices": []}), "No valid response from LLM API, response data: {'choices': []}"),
        (JSONResponse([1]), "No valid response from LLM API, response data: [1]"),
        (standins.completion(None), "No valid response from LLM API, response data: {"),
        (standins.completion("<think>and so on"), "No valid response from LLM API, response data: {"),
        (standins.status(404, "no such model"), "Unexpected error during LLM API call: "),
    ],
)
async def test_an_answer_of_no_use_is_told(serve: Serve, site: Site, response: standins.Answer, error: str) -> None:
    site.chat.then(response)
    async with serve() as client:
        result = await extracted(client, f"{site.url}/article")
    assert (result["success"], result["extracted_info"], result["tokens_used"]) == (False, "", 0)
    assert result["error"].startswith(LLM + error)
    assert len(asked(site)) == 1


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("summary_llm_base_url", "SUMMARY_LLM_BASE_URL environment variable is not set"),
        ("summary_llm_model_name", "SUMMARY_LLM_MODEL_NAME environment variable is not set"),
    ],
)
async def test_a_missing_option_is_told_before_a_page_is_paid_for(
    serve: Serve, site: Site, option: str, error: str
) -> None:
    async with serve(**{option: ""}) as client:
        assert await extracted(client, f"{site.url}/article") == failure(f"{site.url}/article", error)
    assert site.seen == []


async def test_a_dataset_is_refused_and_nothing_is_paid(serve: Serve, site: Site) -> None:
    url = "https://huggingface.co/datasets/x"
    async with serve() as client:
        assert await extracted(client, url) == failure(url, DATASET_REFUSAL)
    assert site.seen == []


@pytest.mark.parametrize(
    ("readers", "path", "error"),
    [
        (["jina", "direct"], "/empty", "No content returned from URL"),
        (["jina", "direct"], "/status/404", "Python Scrape: Unexpected error occurred: {host} answered 404 Not Found"),
        (["direct"], "/image.png", "Python Scrape: Unexpected error occurred: it has no text to read"),
        (["direct", "jina"], "/empty", "Jina Scrape: Unexpected error occurred: {host} answered 422"),
    ],
)
async def test_a_page_that_nobody_could_read_is_told(
    serve: Serve, site: Site, readers: list[str], path: str, error: str
) -> None:
    site.jina.then(standins.status(422))
    async with serve(readers=readers) as client:
        result = await extracted(client, site.url + path)
    expected = f"Scraping failed (both Jina and Python): {error.format(host=site.authority)}"
    assert result["error"].startswith(expected)
    assert result == failure(site.url + path, result["error"])
    assert asked(site) == []


async def test_jinas_own_sentences_are_passed_on(serve: Serve, site: Site) -> None:
    site.jina.then(standins.out_of_balance())
    async with serve(readers=["jina"]) as client:
        result = await extracted(client, f"{site.url}/article")
    assert result["error"] == "Scraping failed (both Jina and Python): Insufficient balance"
    async with serve(readers=["jina"], jina_api_key="") as client:
        result = await extracted(client, f"{site.url}/article")
    assert result["error"] == ("Scraping failed (both Jina and Python): JINA_API_KEY environment variable is not set")


async def test_an_empty_url_is_told(serve: Serve, site: Site) -> None:
    async with serve() as client:
        assert await extracted(client, " ") == failure(
            " ", "Scraping failed (both Jina and Python): URL cannot be empty"
        )
    assert site.seen == []


@pytest.mark.parametrize("headers", [None, {"X-Return-Format": "text"}])
async def test_custom_headers_may_be_null_or_are_sent(serve: Serve, site: Site, headers: dict[str, str] | None) -> None:
    async with serve() as client:
        await extracted(client, f"{site.url}/article", custom_headers=headers)
    assert site.seen[0].headers.get("x-return-format") == (headers or {}).get("X-Return-Format")


async def test_so_many_requests_go_to_the_model_at_a_time_and_no_more(serve: Serve, site: Site) -> None:
    site.chat.then(standins.SLOW, standins.SLOW)
    results: list[dict[str, Any]] = []
    async with serve(summary_concurrency=2) as client:

        async def ask(info: str) -> None:
            results.append(await extracted(client, f"{site.url}/article", info))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(ask, f"question {number}")
            for _ in range(2):
                await anyio.to_thread.run_sync(site.wait_slow)
            await anyio.wait_all_tasks_blocked()
            assert len(asked(site)) == 2
            site.release()
    assert len(results) == 5 and all(result["success"] for result in results)
    assert len(site.asked("/jina/")) == 1


@pytest.mark.parametrize(
    "options", [{"summary_llm_base_url": "127.0.0.1:8000"}, {"summary_model": "x"}, {"summary_concurrency": 0}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        jina_scrape_llm_summary.create_server(**options)
