"""tool-google-search: the whole answer of Serper, what can be left out of it, and reading pages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp.server import MCPServer
from toolhub_servers.search import google_search, sogou_search

from tests.toolhub_servers.search.search_stage import calling, error_object, told, told_json
from tests.toolhub_servers.search.search_standins import ORGANIC, Answer, StandIn, standing_in

pytestmark = pytest.mark.anyio

FAILED = "[ERROR]: google_search tool execution failed after 3 attempts: "
DATASET = (
    "You are trying to scrape a Hugging Face dataset for answers, please do not use the scrape tool for this purpose."
)


def serving(google: StandIn, **options: Any) -> MCPServer:
    return google_search.create_server(serper={"api_key": "k", "base_url": google.url}, **options)


async def test_a_query_is_sent_with_a_page_and_without_correction(google: StandIn) -> None:
    async with calling(serving(google)) as client:
        await told(client, "google_search", q="a", location="Berlin")
    assert google.requests[0].json() == {
        "q": "a",
        "gl": "us",
        "hl": "en",
        "num": 10,
        "location": "Berlin",
        "page": 1,
        "autocorrect": False,
    }


async def test_the_result_is_the_whole_answer_in_its_order_and_indented(google: StandIn) -> None:
    async with calling(serving(google)) as client:
        text = await told(client, "google_search", q="a")
    answer = json.loads(text)
    blocks = "searchParameters answerBox knowledgeGraph organic peopleAlsoAsk relatedSearches credits"
    assert " ".join(answer) == blocks
    assert answer["organic"] == [ORGANIC[0], {**ORGANIC[1], "link": "https://zh.wikipedia.org/wiki/苹果?a=%2F%20b"}]
    assert text == json.dumps(answer, ensure_ascii=False, indent=2)


async def test_datasets_are_left_out_and_nothing_else(google: StandIn) -> None:
    links = ["https://huggingface.co/datasets/gaia", "https://unifuncs.com/1", "https://huggingface.co/spaces/x"]
    google.faults = [Answer({"organic": [{"link": link} for link in links]})]
    async with calling(serving(google)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert answer["organic"] == [{"link": "https://unifuncs.com/1"}]


@pytest.mark.parametrize(
    ("option", "block"), [("remove_knowledge_graph", "knowledgeGraph"), ("remove_answer_box", "answerBox")]
)
async def test_a_block_can_be_left_out(google: StandIn, option: str, block: str) -> None:
    async with calling(serving(google, **{option: True})) as client:
        assert block not in await told_json(client, "google_search", q="a")
    async with calling(serving(google)) as client:
        assert block in await told_json(client, "google_search", q="a")


async def test_snippets_can_be_left_out_of_hits_and_questions(google: StandIn) -> None:
    async with calling(serving(google, remove_snippets=True)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert not any("snippet" in item for block in ("organic", "peopleAlsoAsk") for item in answer[block])
    assert "snippet" in answer["answerBox"]
    assert answer["organic"][0]["title"] == ORGANIC[0]["title"]


async def test_a_result_with_nothing_in_it_says_so(google: StandIn) -> None:
    google.faults = [Answer({"searchParameters": {"q": "a"}, "organic": [], "credits": 1})]
    async with calling(serving(google)) as client:
        assert await told(client, "google_search", q="a") == (
            f"{FAILED}Empty result from google_search tool, please try again."
        )


async def test_a_result_without_hits_but_with_an_answer_is_one(google: StandIn) -> None:
    google.faults = [Answer({"answerBox": {"answer": "42"}, "organic": []})]
    async with calling(serving(google)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert answer == {"searchParameters": {}, "answerBox": {"answer": "42"}, "organic": []}


async def test_a_failure_names_the_service_and_the_status(google: StandIn) -> None:
    google.faults = [Answer({"message": "Unauthorized."}, status=403)]
    async with calling(serving(google)) as client:
        assert await told(client, "google_search", q="a") == (
            f'{FAILED}serper answered 403: {{"message": "Unauthorized."}} (check the option serper.api_key)'
        )
    assert len(google.requests) == 1


async def test_an_empty_query_is_told_and_not_sent(google: StandIn) -> None:
    async with calling(serving(google)) as client:
        assert await told(client, "google_search", q=" ") == error_object(
            "Search query 'q' is required and cannot be empty"
        )
    assert google.requests == []


async def test_without_backends_the_tool_says_that_the_key_is_missing() -> None:
    async with calling(google_search.create_server(backends=[])) as client:
        assert await told(client, "google_search", q="a") == (
            "[ERROR]: SERPER_API_KEY is not set, google_search tool is not available."
        )


def reading(module: Any, **pages: Any) -> MCPServer:
    server: MCPServer = module.create_server(backends=[], pages={"readers": ["jina"], **pages})
    return server


@pytest.mark.parametrize("module", [google_search, sogou_search])
async def test_a_page_is_read_and_told_without_its_links(module: Any) -> None:
    text = b"# Head\n\nSee [the *text*](https://x.example/a) and ![image](i.png)`code`."
    async with standing_in(lambda _: Answer(text, headers={"content-type": "text/plain"})) as jina:
        async with calling(reading(module, jina_api_key="j-1", jina_base_url=jina.url)) as client:
            told_text = await told(client, "scrape_website", url="https://example.org/a?b=c")
    assert told_text == "Head\n\nSee the text and `code`."
    assert jina.requests[0].target == "/https://example.org/a?b=c"
    assert jina.requests[0].headers["authorization"] == "Bearer j-1"


@pytest.mark.parametrize("module", [google_search, sogou_search])
async def test_what_cannot_be_read_is_told_in_the_words_that_models_know(module: Any) -> None:
    async with calling(reading(module)) as client:
        for url, expected in [
            ("ftp://example.org", "Invalid URL: 'ftp://example.org'. URL must start with http:// or https://"),
            ("https://huggingface.co/datasets/gaia", DATASET),
            ("https://example.org", "JINA_API_KEY is not set, scrape_website tool is not available."),
        ]:
            assert await told(client, "scrape_website", url=url) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, "Page Not Found (404): The page at 'https://example.org' does not exist."),
        (403, "Access Forbidden (403): Access to 'https://example.org' is forbidden."),
        (500, "Server Error (500): The server at 'https://example.org' encountered an internal error."),
    ],
)
async def test_the_status_of_a_page_is_told(status: int, expected: str) -> None:
    async with standing_in(lambda _: Answer(status=status)) as jina:
        async with calling(reading(google_search, jina_api_key="j", jina_base_url=jina.url)) as client:
            assert await told(client, "scrape_website", url="https://example.org") == f"[ERROR]: {expected}"


def test_an_option_for_pages_that_is_unknown_is_named() -> None:
    with pytest.raises(ValueError, match="option pages.jina_key: Extra inputs are not permitted"):
        google_search.create_server(backends=[], pages={"jina_key": "x"})
