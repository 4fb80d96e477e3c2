"""search_and_scrape_webpage's google_search on a stand-in for Serper: requests, results, and every failure."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from toolhub_servers.search import search_and_scrape_webpage

from tests.toolhub_servers.search.search_stage import calling, error_object, told, told_json
from tests.toolhub_servers.search.search_standins import DROPPED, NEVER, ORGANIC, Answer, Request, StandIn

pytestmark = pytest.mark.anyio


def serving(google: StandIn, **options: Any) -> MCPServer:
    return search_and_scrape_webpage.create_server(serper={"api_key": "k-1", "base_url": google.url}, **options)


def finds(*links: str) -> Answer:
    return Answer({"searchParameters": {"q": "?"}, "organic": [{"title": link, "link": link} for link in links]})


async def test_a_query_is_sent_as_miroflow_sends_it(google: StandIn) -> None:
    async with calling(serving(google)) as client:
        await told(client, "google_search", q="  apple inc ")
    (request,) = google.requests
    assert (request.method, request.target) == ("POST", "/search")
    assert request.headers["x-api-key"] == "k-1"
    assert request.headers["content-type"] == "application/json"
    assert request.json() == {"q": "apple inc", "gl": "us", "hl": "en", "num": 10}


async def test_parameters_that_are_given_are_sent(google: StandIn) -> None:
    given = {"gl": "cn", "hl": "zh", "location": "Beijing", "num": 5, "tbs": "qdr:w", "page": 2, "autocorrect": False}
    async with calling(serving(google)) as client:
        await told(client, "google_search", q="a", **given)
    assert google.requests[0].json() == {"q": "a", **given}


async def test_parameters_that_are_null_or_empty_are_not_sent(google: StandIn) -> None:
    nothing = dict.fromkeys(["gl", "hl", "location", "num", "tbs", "page", "autocorrect"])
    async with calling(serving(google)) as client:
        await told(client, "google_search", q="a", **{**nothing, "location": "", "tbs": ""})
    assert google.requests[0].json() == {"q": "a", "gl": "us", "hl": "en", "num": 10}


async def test_the_result_has_the_organic_hits_and_the_query_and_nothing_else(google: StandIn) -> None:
    async with calling(serving(google)) as client:
        text = await told(client, "google_search", q="apple")
    readable = {**ORGANIC[1], "link": "https://zh.wikipedia.org/wiki/苹果?a=%2F%20b"}
    parameters = {"q": "apple", "gl": "us", "hl": "en", "type": "search", "num": 10, "engine": "google"}
    expected = {"organic": [ORGANIC[0], readable], "searchParameters": parameters}
    assert text == json.dumps(expected, ensure_ascii=False)


async def test_hits_that_are_no_sources_are_left_out(google: StandIn) -> None:
    google.faults = [
        finds(
            "https://huggingface.co/datasets/gaia",
            "https://good.example/a",
            "https://huggingface.co/spaces/x",
            "https://unifuncs.com/s/1",
            "https://huggingface.co/papers/1",
        )
    ]
    async with calling(serving(google)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert [hit["link"] for hit in answer["organic"]] == ["https://good.example/a", "https://huggingface.co/papers/1"]


async def test_a_quoted_query_without_results_is_asked_once_more_without_quotes(google: StandIn) -> None:
    google.faults = [finds("https://huggingface.co/datasets/gaia")]
    async with calling(serving(google)) as client:
        answer = await told_json(client, "google_search", q='"exact words" here')
    assert [request.json()["q"] for request in google.requests] == ['"exact words" here', "exact words here"]
    assert len(answer["organic"]) == 2
    assert answer["searchParameters"]["q"] == "exact words here"


@pytest.mark.parametrize("q", ["plain", '""'])
async def test_a_query_without_results_is_not_repeated_when_it_would_be_the_same_or_empty(
    google: StandIn, q: str
) -> None:
    google.reply = lambda _: finds()
    async with calling(serving(google)) as client:
        assert await told_json(client, "google_search", q=q) == {"organic": [], "searchParameters": {"q": "?"}}
    assert len(google.requests) == 1


@pytest.mark.parametrize("q", ["", " \n "])
async def test_an_empty_query_is_told_and_not_sent(google: StandIn, q: str) -> None:
    async with calling(serving(google)) as client:
        assert await told(client, "google_search", q=q) == error_object(
            "Search query 'q' is required and cannot be empty"
        )
    assert google.requests == []


async def test_without_backends_the_tool_says_that_the_key_is_missing() -> None:
    async with calling(search_and_scrape_webpage.create_server(backends=[])) as client:
        assert await told(client, "google_search", q="a") == error_object("SERPER_API_KEY environment variable not set")


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (400, "the query or one of its parameters is not accepted, or the account has no credits"),
        (401, "check the option serper.api_key"),
        (403, "check the option serper.api_key"),
    ],
)
async def test_a_refusal_is_told_with_its_status_and_not_repeated(google: StandIn, status: int, hint: str) -> None:
    google.faults = [Answer({"message": "No."}, status=status)]
    async with calling(serving(google)) as client:
        assert await told(client, "google_search", q="a") == error_object(
            f'Unexpected error: serper answered {status}: {{"message": "No."}} ({hint})'
        )
    assert len(google.requests) == 1


@pytest.mark.parametrize("fault", [Answer(status=500), Answer(status=503), DROPPED, Answer(status=429)])
async def test_what_may_pass_is_tried_again(google: StandIn, fault: Answer) -> None:
    google.faults = [fault, fault]
    async with calling(serving(google)) as client:
        assert len((await told_json(client, "google_search", q="a"))["organic"]) == 2
    assert len(google.requests) == 3


async def test_what_does_not_pass_is_told_after_three_tries(google: StandIn) -> None:
    google.reply = lambda _: Answer({"message": "Broken."}, status=500)
    async with calling(serving(google)) as client:
        assert await told(client, "google_search", q="a") == error_object(
            'Unexpected error: serper answered 500: {"message": "Broken."}'
        )
    assert len(google.requests) == 3


async def test_a_pause_longer_than_the_deadline_is_not_waited_for(google: StandIn) -> None:
    google.faults = [Answer({"message": "Slow down."}, status=429, headers={"retry-after": "3600"})]
    async with calling(serving(google)) as client:
        with anyio.fail_after(30):
            text = await told(client, "google_search", q="a")
    assert text == error_object(
        'Unexpected error: serper answered 429: {"message": "Slow down."} '
        "(too many requests for the plan of this key; it asks for a pause of 3600 s)"
    )
    assert len(google.requests) == 1


async def test_a_service_that_never_answers_is_given_up_at_the_deadline(google: StandIn) -> None:
    google.reply = lambda _: NEVER
    async with calling(serving(google, web={"total_s": 0.2})) as client:
        answer = await told_json(client, "google_search", q="a")
    assert "organic" not in answer
    assert answer["error"].startswith("Unexpected error: serper timed out: ")
    assert "0.2 s" in answer["error"]


async def test_all_backends_together_have_one_deadline(google: StandIn) -> None:
    google.reply = lambda _: NEVER
    async with calling(serving(google, timeout_s=0.2)) as client:
        assert await told(client, "google_search", q="a") == error_object(
            "Unexpected error: no search backend answered within 0.2 s"
        )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>no</html>", "is not JSON: <html>no</html>"),
        (b"", "is not JSON: it is empty"),
        (b"[1]", "is not a JSON object: [1]"),
    ],
)
async def test_an_answer_that_is_not_understood_is_shown(google: StandIn, body: bytes, why: str) -> None:
    google.faults = [Answer(body)]
    async with calling(serving(google)) as client:
        assert await told(client, "google_search", q="a") == error_object(
            f"Unexpected error: serper gave an answer that {why}"
        )


async def test_a_service_that_is_not_there_is_named(google: StandIn) -> None:
    nobody = search_and_scrape_webpage.create_server(serper={"api_key": "k", "base_url": "http://127.0.0.1:9"})
    async with calling(nobody) as client:
        answer = await told_json(client, "google_search", q="a")
    assert answer["error"].startswith("Unexpected error: serper could not be reached: ")
    assert "127.0.0.1:9" in answer["error"]


@pytest.mark.parametrize("organic", [None, [], [None, "x", {"title": "no link"}]])
async def test_odd_results_are_no_error(google: StandIn, organic: Any) -> None:
    google.reply = lambda _: Answer({"organic": organic})
    async with calling(serving(google)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert answer == {"organic": [{"title": "no link"}] if organic else [], "searchParameters": {}}


async def test_an_error_never_shows_the_key(google: StandIn) -> None:
    google.reply = lambda _: Answer(status=403)
    async with calling(serving(google)) as client:
        assert "k-1" not in await told(client, "google_search", q="a")


async def test_connections_are_kept(google: StandIn) -> None:
    async with calling(serving(google)) as client:
        for q in "abcde":
            await told(client, "google_search", q=q)
    assert len(google.requests) == 5
    assert google.connections == 1


async def test_the_same_query_is_asked_once_however_many_ask_it(google: StandIn) -> None:
    async with calling(serving(google)) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(lambda: told(client, "google_search", q="a"))
        await told(client, "google_search", q=" a ")
        assert len(google.requests) == 1
        await told(client, "google_search", q="a", page=2)
        assert len(google.requests) == 2


async def test_a_failure_is_not_remembered(google: StandIn) -> None:
    google.faults = [Answer(status=403)]
    async with calling(serving(google)) as client:
        assert "error" in await told_json(client, "google_search", q="a")
        assert "organic" in await told_json(client, "google_search", q="a")


async def test_nothing_is_remembered_if_that_is_not_wanted(google: StandIn) -> None:
    async with calling(serving(google, cache_s=0)) as client:
        for _ in range(2):
            await told(client, "google_search", q="a")
    assert len(google.requests) == 2


async def test_half_characters_are_replaced_rather_than_failing(google: StandIn) -> None:
    seen: list[Request] = google.requests
    async with calling(serving(google)) as client:
        await told(client, "google_search", q="a\ud800b")
    assert seen[0].json()["q"] == "a?b"
