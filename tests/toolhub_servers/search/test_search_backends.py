"""SearXNG and Exa on stand-ins: what they are asked, and what is made of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from mcp.server import MCPServer
from toolhub_servers.search import search_and_scrape_webpage
from toolhub_servers.search.backend import open_service
from toolhub_servers.search.backends.exa import HINTS, Exa
from toolhub_servers.search.backends.searxng import MAX_PAGES
from toolhub_servers.search.model import Query
from toolhub_servers.search.registry import settings_model

from tests.toolhub_servers.search.search_stage import calling, told, told_json
from tests.toolhub_servers.search.search_standins import Answer, Request, StandIn
from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio


def by_searxng(instance: StandIn, **options: Any) -> MCPServer:
    searxng = {"base_url": instance.url + "/", **options}
    return search_and_scrape_webpage.create_server(backends=["searxng"], searxng=searxng)


def by_exa(neural: StandIn, **options: Any) -> MCPServer:
    exa = {"api_key": "e-1", "base_url": neural.url, **options}
    return search_and_scrape_webpage.create_server(backends=["exa"], exa=exa)


def links_of(answer: Any) -> list[str]:
    return [hit["link"].removeprefix("https://example.org/") for hit in answer["organic"]]


def instance_with(*pages: list[str], silent: Sequence[str] = ()) -> Callable[[Request], Answer]:
    """A SearXNG that has these addresses on its pages, and further ones without any."""

    def reply(request: Request) -> Answer:
        found = dict(enumerate(pages, start=1)).get(int(request.query["pageno"]), [])
        results = [{"url": f"https://example.org/{name}", "title": name} for name in found]
        return Answer({"results": results, "unresponsive_engines": list(silent)})

    return reply


async def test_searxng_is_asked_for_json(instance: StandIn) -> None:
    async with calling(by_searxng(instance)) as client:
        await told(client, "google_search", q="a&b=c d", hl="de", tbs="qdr:w")
    (request,) = instance.requests
    assert (request.method, request.path) == ("GET", "/search")
    assert request.query == {"q": "a&b=c d", "format": "json", "language": "de", "pageno": "1", "time_range": "week"}


@pytest.mark.parametrize("num", [3, 10, 20, 25])
async def test_pages_of_searxng_follow_each_other_without_gap_or_repeat(instance: StandIn, num: int) -> None:
    async with calling(by_searxng(instance)) as client:
        found = [links_of(await told_json(client, "google_search", q="a", num=num, page=page)) for page in (1, 2, 3)]
    assert [len(links) for links in found] == [num] * 3
    everything = [f"{page}/{number}" for page in range(1, 5) for number in range(1, 21)]
    assert [link for links in found for link in links] == everything[: 3 * num]


async def test_a_page_of_searxng_that_is_known_is_not_asked_for_again(instance: StandIn) -> None:
    async with calling(by_searxng(instance)) as client:
        for page in (1, 2, 3):
            await told(client, "google_search", q="a", page=page)
        assert [request.query["pageno"] for request in instance.requests] == ["1", "2"]
        await told(client, "google_search", q="b")
        assert len(instance.requests) == 3


async def test_what_searxng_repeats_on_a_later_page_is_given_once(instance: StandIn) -> None:
    instance.reply = instance_with(["a", "b", "c"], ["c", "a", "d"], ["e"])
    async with calling(by_searxng(instance)) as client:
        found = [links_of(await told_json(client, "google_search", q="a", num=2, page=page)) for page in (1, 2, 3, 4)]
    assert found == [["a", "b"], ["c", "d"], ["e"], []]


async def test_searxng_that_only_repeats_itself_is_not_asked_without_end(instance: StandIn) -> None:
    instance.reply = instance_with(*[["a", "b"]] * 50)
    async with calling(by_searxng(instance)) as client:
        assert links_of(await told_json(client, "google_search", q="a", num=100)) == ["a", "b"]
    assert len(instance.requests) == 2


async def test_a_page_far_behind_the_last_costs_a_bounded_number_of_requests(instance: StandIn) -> None:
    async with calling(by_searxng(instance)) as client:
        assert links_of(await told_json(client, "google_search", q="a", page=1000)) == []
    assert len(instance.requests) == MAX_PAGES


async def test_hits_of_searxng_are_given_though_its_next_page_fails(instance: StandIn) -> None:
    instance.reply = instance_with(["a", "b", "c"])
    async with calling(by_searxng(instance)) as client:
        await told(client, "google_search", q="a", num=3)
        instance.faults = [Answer(b"Too Many Requests", status=403)] * 2
        assert links_of(await told_json(client, "google_search", q="a", num=2, page=2)) == ["c"]
        assert "403" in (await told_json(client, "google_search", q="a", num=3, page=2))["error"]


async def test_the_end_of_what_searxng_has_is_no_failure_of_its_engines(instance: StandIn) -> None:
    instance.reply = instance_with(["a", "b", "c"], silent=["brave"])
    async with calling(by_searxng(instance)) as client:
        assert links_of(await told_json(client, "google_search", q="a")) == ["a", "b", "c"]
        assert links_of(await told_json(client, "google_search", q="a", page=2)) == []


@pytest.mark.parametrize(
    ("tbs", "expected"),
    [("qdr:h", "day"), ("qdr:d", "day"), ("qdr:m3", "month"), ("qdr:y", "year"), ("cdr:1", None), ("qdr:", None)],
)
async def test_searxng_knows_the_nearest_span_of_time(instance: StandIn, tbs: str, expected: str | None) -> None:
    async with calling(by_searxng(instance)) as client:
        await told(client, "google_search", q="a", tbs=tbs)
    assert instance.requests[0].query.get("time_range") == expected


async def test_searxng_can_be_asked_for_certain_engines(instance: StandIn) -> None:
    async with calling(by_searxng(instance, engines=["google", "bing"], categories=["news"])) as client:
        await told(client, "google_search", q="a")
    assert instance.requests[0].query["engines"] == "google,bing"
    assert instance.requests[0].query["categories"] == "news"


async def test_what_searxng_finds_reads_as_if_serper_had(instance: StandIn) -> None:
    async with calling(by_searxng(instance)) as client:
        answer = await told_json(client, "google_search", q="a", num=2)
    assert answer == {
        "organic": [
            {
                "title": "Title 1",
                "link": "https://example.org/1/1",
                "snippet": "Content 1",
                "date": "2026-01-31",
                "position": 1,
            },
            {"title": "Title 2", "link": "https://example.org/1/2", "snippet": "Content 2", "position": 2},
        ],
        "searchParameters": {"q": "a", "gl": "us", "hl": "en", "type": "search", "num": 2, "engine": "searxng"},
    }


async def test_searxng_without_engines_is_a_failure_and_no_empty_result(instance: StandIn) -> None:
    silent = [["google", "CAPTCHA"], ["brave"], "bing"]
    instance.faults = [Answer({"results": [], "unresponsive_engines": silent})]
    async with calling(by_searxng(instance)) as client:
        answer = await told_json(client, "google_search", q="a")
        assert answer["error"] == (
            "Unexpected error: searxng got no answer from its engines: google (CAPTCHA), brave, bing"
        )
        instance.faults = [Answer({"results": [], "unresponsive_engines": []})]
        assert (await told_json(client, "google_search", q="a"))["organic"] == []


async def test_searxng_that_gives_no_json_is_told_with_the_way_out(instance: StandIn) -> None:
    instance.reply = lambda _: Answer(b"Forbidden", status=403)
    async with calling(by_searxng(instance)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert answer["error"].startswith("Unexpected error: searxng answered 403: Forbidden (the instance gives no JSON: ")


async def test_exa_is_asked_with_its_key(neural: StandIn) -> None:
    async with calling(by_exa(neural, type="keyword")) as client:
        await told(client, "google_search", q="a", num=5, gl="uk")
    (request,) = neural.requests
    assert (request.method, request.path, request.headers["x-api-key"]) == ("POST", "/search", "e-1")
    assert request.json() == {
        "query": "a",
        "type": "keyword",
        "numResults": 5,
        "contents": {"highlights": True},
        "userLocation": "GB",
    }


async def test_what_exa_finds_reads_as_if_serper_had(neural: StandIn) -> None:
    async with calling(by_exa(neural)) as client:
        answer = await told_json(client, "google_search", q="a", num=1)
    assert answer["organic"] == [
        {
            "title": "Title 1",
            "link": "https://example.org/1",
            "snippet": "First 1. ... Second.",
            "date": "2026-01-31",
            "position": 1,
        }
    ]


async def test_a_later_page_of_exa_is_the_rest_of_more_results(neural: StandIn) -> None:
    async with calling(by_exa(neural)) as client:
        answer = await told_json(client, "google_search", q="a", num=4, page=3)
        assert neural.requests[0].json()["numResults"] == 12
        assert [hit["link"][-2:] for hit in answer["organic"]] == ["/9", "10", "11", "12"]
        assert [hit["position"] for hit in answer["organic"]] == [1, 2, 3, 4]
        assert (await told_json(client, "google_search", q="a", page=11))["organic"] == []
    assert len(neural.requests) == 1


async def test_exa_knows_when_the_past_week_began(neural: StandIn) -> None:
    settings = settings_model()()
    web = settings.web.model_copy(update={"retries": 0})
    async with open_shared_resources() as resources:
        service = await open_service("exa", neural.url, resources, web, HINTS)
        exa = Exa(service, "k", "auto", now=lambda: datetime(2026, 3, 8, 12, tzinfo=UTC))
        await exa.search(Query("a", tbs="qdr:w"))
    assert neural.requests[0].json()["startPublishedDate"] == "2026-03-01T12:00:00.000Z"
