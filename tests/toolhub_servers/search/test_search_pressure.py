"""A search that failed because a service has too many requests says so beside its sentence."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import CallToolResult
from toolhub_servers.search import google_search, search_and_scrape_webpage, sogou_search

from tests.toolhub_servers.search.search_stage import calling, text_of, told_json
from tests.toolhub_servers.search.search_standins import SECRET_ID, SECRET_KEY, Answer, StandIn, busy
from toolhub import Hub, parse_config
from toolhub.overload import META, OverloadSignal, overload_in

pytestmark = pytest.mark.anyio

REFUSED = Answer({"message": "Slow down."}, status=429, headers={"retry-after": "30"})
FAST = {"web": {"total_s": 5}}


def at(google: StandIn) -> dict[str, Any]:
    return {"serper": {"api_key": "k", "base_url": google.url}, **FAST}


def said(result: CallToolResult) -> OverloadSignal | None:
    return overload_in(result.model_dump(by_alias=True))


async def search(client: Client, **arguments: Any) -> CallToolResult:
    return await client.call_tool("google_search", {"q": "a", **arguments})


@pytest.mark.parametrize("program", [google_search, search_and_scrape_webpage])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (REFUSED, OverloadSignal(30)),
        (Answer(status=503, headers={"retry-after": "3600"}), OverloadSignal(60)),
        (Answer(status=429), OverloadSignal()),
    ],
)
async def test_a_refused_search_says_for_how_long(
    google: StandIn, program: Any, answer: Answer, expected: OverloadSignal
) -> None:
    google.reply = lambda _: answer
    async with calling(program.create_server(**at(google))) as client:
        result = await search(client)
    assert said(result) == expected
    assert f"serper answered {answer.status}" in text_of(result)


async def test_every_task_that_waited_for_the_search_is_told(google: StandIn) -> None:
    google.reply = lambda _: Answer(status=429, headers={"retry-after": "30"}, held=release)
    release = anyio.Event()
    results: list[CallToolResult] = []

    async def ask() -> None:
        results.append(await search(client))

    async with calling(google_search.create_server(**at(google))) as client, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
        await google.asked.wait()
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert [said(result) for result in results] == [OverloadSignal(30)] * 3
    assert len(google.requests) == 1


@pytest.mark.parametrize("status", [400, 403, 500])
async def test_another_failure_is_no_pressure(google: StandIn, status: int) -> None:
    google.reply = lambda _: Answer(status=status, headers={"retry-after": "3"})
    async with calling(google_search.create_server(**at(google))) as client:
        assert said(await search(client)) is None


async def test_a_search_that_another_backend_answered_is_no_pressure(google: StandIn, neural: StandIn) -> None:
    google.reply = lambda _: REFUSED
    exa = {"api_key": "k", "base_url": neural.url}
    async with calling(google_search.create_server(**at(google), exa=exa, backends=["serper", "exa"])) as client:
        result = await search(client)
    assert neural.requests and said(result) is None


async def test_when_all_backends_fail_the_refusal_of_one_is_told(google: StandIn, neural: StandIn) -> None:
    google.reply = lambda _: REFUSED
    neural.reply = lambda _: Answer(status=403)
    exa = {"api_key": "k", "base_url": neural.url}
    async with calling(google_search.create_server(**at(google), exa=exa, backends=["serper", "exa"])) as client:
        assert said(await search(client)) == OverloadSignal(30)


async def test_the_search_after_a_refused_one_is_not_marked(google: StandIn) -> None:
    google.faults = [Answer(status=429)] * 3
    async with calling(google_search.create_server(**at(google))) as client:
        assert said(await search(client)) == OverloadSignal()
        assert await told_json(client, "google_search", q="b")
        assert said(await search(client, q="b")) is None


@pytest.mark.parametrize(("code", "expected"), [("RequestLimitExceeded", OverloadSignal()), ("InternalError", None)])
async def test_sogou_says_it_by_a_code(cloud: StandIn, code: str, expected: OverloadSignal | None) -> None:
    cloud.reply = lambda _: busy(code)
    keys = {"secret_id": SECRET_ID, "secret_key": SECRET_KEY, "base_url": cloud.url, "pause_s": 0}
    async with calling(sogou_search.create_server(sogou=keys)) as client:
        assert said(await client.call_tool("sogou_search", {"Query": "a"})) == expected


async def test_the_mark_reaches_the_hub(google: StandIn) -> None:
    google.reply = lambda _: REFUSED
    server = {"builtin": "google_search", "options": at(google)}
    with anyio.fail_after(60):
        async with Hub(parse_config({"servers": {"search": server}})) as hub, hub.task("t") as task:
            result = await task.call("search", "google_search", {"q": "a"})
    assert result.raw["_meta"][META] == 30
    assert "serper answered 429" in result.text
