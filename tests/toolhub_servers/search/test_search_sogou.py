"""Both tools named sogou_search on a stand-in for Tencent Cloud that checks signatures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp.server import MCPServer
from toolhub_servers.search import search_and_scrape_webpage, sogou_search

from tests.toolhub_servers.search.search_stage import calling, error_object, told, told_json
from tests.toolhub_servers.search.search_standins import DROPPED, SECRET_ID, SECRET_KEY, Answer, StandIn, busy

pytestmark = pytest.mark.anyio

FAILED = "[ERROR]: sogou_search tool execution failed after 3 attempts: "


def keys(cloud: StandIn) -> dict[str, Any]:
    return {"secret_id": SECRET_ID, "secret_key": SECRET_KEY, "base_url": cloud.url, "pause_s": 0}


def webpage(cloud: StandIn) -> MCPServer:
    return search_and_scrape_webpage.create_server(backends=[], sogou=keys(cloud))


def alone(cloud: StandIn) -> MCPServer:
    return sogou_search.create_server(sogou=keys(cloud))


def expected(query: str, count: int) -> str:
    page = {"url": "https://example.cn/%E5%8C%97", "passage": "首都", "date": "2026-01-31 00:00:00", "site": "例子"}
    pages = [{"title": f"北京 {number}", **page} for number in range(count)]
    return json.dumps({"Query": query, "Pages": pages, "Version": "standard", "Msg": ""}, ensure_ascii=False)


async def test_a_query_is_signed_and_sent_as_the_service_wants_it(cloud: StandIn) -> None:
    async with calling(webpage(cloud)) as client:
        await told(client, "sogou_search", q=" 北京 ", num=20)
    (request,) = cloud.requests
    assert (request.method, request.target) == ("POST", "/")
    assert request.headers["x-tc-action"] == "SearchPro"
    assert request.headers["x-tc-version"] == "2025-05-08"
    assert request.json() == {"Query": "北京", "Mode": 0, "Cnt": 20}


async def test_the_result_has_the_five_fields_of_each_page_and_no_request_id(cloud: StandIn) -> None:
    async with calling(webpage(cloud)) as client:
        assert await told(client, "sogou_search", q="北京") == expected("北京", 10)
    async with calling(alone(cloud)) as client:
        assert await told(client, "sogou_search", Query="北京", Cnt=20) == expected("北京", 20)


@pytest.mark.parametrize("query", ['a "quoted" word', 'back\\slash", "Mode": 1, "x": "', "new\nline", "{}"])
async def test_whatever_is_in_a_query_is_sent_as_it_is(cloud: StandIn, query: str) -> None:
    async with calling(alone(cloud)) as client:
        await told(client, "sogou_search", Query=query)
    assert cloud.requests[0].json() == {"Query": query, "Mode": 0, "Cnt": 10}


async def test_the_parameters_of_the_other_server_are_understood(cloud: StandIn) -> None:
    async with calling(webpage(cloud)) as client:
        assert await told(client, "sogou_search", Query="a", Cnt=20) == expected("a", 20)
    async with calling(alone(cloud)) as client:
        assert await told(client, "sogou_search", q="a", num=30) == expected("a", 30)


@pytest.mark.parametrize("num", [0, 5, 15, 60])
async def test_a_count_that_sogou_does_not_have_is_told_and_not_sent(cloud: StandIn, num: int) -> None:
    async with calling(webpage(cloud)) as client:
        assert await told(client, "sogou_search", q="a", num=num) == error_object(
            f"Invalid num value: {num}. Must be one of 10, 20, 30, 40, 50"
        )
    async with calling(alone(cloud)) as client:
        assert await told(client, "sogou_search", Query="a", Cnt=num) == (
            f"{FAILED}Invalid Cnt value: {num}. Must be one of 10, 20, 30, 40, 50"
        )
    assert cloud.requests == []


async def test_an_empty_query_is_told_and_not_sent(cloud: StandIn) -> None:
    async with calling(webpage(cloud)) as client:
        assert await told(client, "sogou_search", q=" ") == error_object(
            "Search query 'q' is required and cannot be empty"
        )
    async with calling(alone(cloud)) as client:
        assert await told(client, "sogou_search", Query="") == (
            f"{FAILED}Search query 'Query' is required and cannot be empty"
        )
    assert cloud.requests == []


async def test_missing_keys_are_told() -> None:
    async with calling(search_and_scrape_webpage.create_server(backends=[])) as client:
        assert await told(client, "sogou_search", q="a") == error_object(
            "TENCENTCLOUD_SECRET_ID or TENCENTCLOUD_SECRET_KEY environment variable not set"
        )
    async with calling(sogou_search.create_server()) as client:
        assert await told(client, "sogou_search", Query="a") == (
            "[ERROR]: TENCENTCLOUD_SECRET_ID or TENCENTCLOUD_SECRET_KEY is not set, sogou_search tool is not available."
        )


async def test_a_wrong_key_is_told_with_the_words_of_the_service_and_once(cloud: StandIn) -> None:
    why = (
        "AuthFailure.SignatureFailure: The provided credentials could not be validated. (RequestId r-1)"
        "; check the options sogou.secret_id and sogou.secret_key"
    )
    wrong = {**keys(cloud), "secret_key": "wrong"}
    async with calling(search_and_scrape_webpage.create_server(backends=[], sogou=wrong)) as client:
        assert await told(client, "sogou_search", q="a") == error_object(f"Tencent Cloud API error: {why}")
    assert len(cloud.requests) == 1
    async with calling(sogou_search.create_server(sogou=wrong)) as client:
        assert await told(client, "sogou_search", Query="a") == FAILED + why


@pytest.mark.parametrize("fault", [busy(), busy("InternalError"), Answer(status=502), DROPPED])
async def test_a_busy_service_is_asked_again(cloud: StandIn, fault: Answer) -> None:
    cloud.faults = [fault, fault]
    async with calling(webpage(cloud)) as client:
        assert await told(client, "sogou_search", q="a") == expected("a", 10)
    assert len(cloud.requests) == 3


async def test_a_service_that_stays_busy_is_told_after_three_tries(cloud: StandIn) -> None:
    cloud.reply = lambda _: busy()
    async with calling(webpage(cloud)) as client:
        assert await told(client, "sogou_search", q="a") == error_object(
            "Tencent Cloud API error: RequestLimitExceeded: Too many. (RequestId r-3)"
        )
    assert len(cloud.requests) == 3


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "sogou gave an answer that is not JSON: <html>"),
        ({"Reply": 1}, "sogou gave an answer that has no 'Response': {\"Reply\": 1}"),
        ({"Response": {"Pages": ["{", "[]"]}}, "sogou gave 2 pages, and none of them is a JSON object"),
    ],
)
async def test_an_answer_that_is_not_understood_is_an_error_and_no_empty_result(
    cloud: StandIn, body: Any, why: str
) -> None:
    cloud.reply = lambda _: Answer(body)
    async with calling(webpage(cloud)) as client:
        assert await told(client, "sogou_search", q="a") == error_object(f"Unexpected error: {why}")


async def test_a_page_that_cannot_be_read_does_not_take_the_others_with_it(cloud: StandIn) -> None:
    cloud.reply = lambda _: Answer({"Response": {"Query": "a", "Pages": ["{", '{"title": "t", "url": "u"}']}})
    async with calling(webpage(cloud)) as client:
        answer = await told_json(client, "sogou_search", q="a")
    assert answer["Pages"] == [{"title": "t", "url": "u", "passage": "", "date": "", "site": ""}]


async def test_no_pages_are_an_empty_result(cloud: StandIn) -> None:
    cloud.reply = lambda _: Answer({"Response": {"Query": "a", "Pages": None, "RequestId": "r"}})
    async with calling(webpage(cloud)) as client:
        assert await told_json(client, "sogou_search", q="a") == {"Query": "a", "Pages": []}


async def test_a_later_page_of_sogou_is_the_rest_of_more_results(cloud: StandIn) -> None:
    server = search_and_scrape_webpage.create_server(backends=["sogou"], sogou=keys(cloud))
    async with calling(server) as client:
        answer = await told_json(client, "google_search", q="北京", num=12, page=2)
        assert [hit["title"] for hit in answer["organic"]] == [f"北京 {number}" for number in range(12, 24)]
        assert [hit["position"] for hit in answer["organic"]] == list(range(1, 13))
        assert (await told_json(client, "google_search", q="北京", num=25, page=3))["organic"] == []
    assert [request.json()["Cnt"] for request in cloud.requests] == [30]


async def test_sogou_can_answer_for_google(cloud: StandIn) -> None:
    server = search_and_scrape_webpage.create_server(backends=["sogou"], sogou=keys(cloud))
    async with calling(server) as client:
        answer = await told_json(client, "google_search", q="北京", num=12)
    assert cloud.requests[0].json()["Cnt"] == 20
    assert len(answer["organic"]) == 12
    assert answer["organic"][0] == {
        "title": "北京 0",
        "link": "https://example.cn/北",
        "snippet": "首都",
        "date": "2026-01-31 00:00:00",
        "position": 1,
    }
    assert answer["searchParameters"]["engine"] == "sogou"
