"""Several backends behind one tool: who is asked when, and what is wrong before anything is asked."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import Client
from toolhub_servers.search import google_search, search_and_scrape_webpage, sogou_search
from toolhub_servers.search.chain import Search, first_results
from toolhub_servers.search.model import Query, Results, SearchFailed
from toolhub_servers.search.registry import read_settings

from tests.toolhub_servers.search.search_stage import calling, text_of, told_json
from tests.toolhub_servers.search.search_standins import NEVER, Answer, StandIn, serper
from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio


def both(google: StandIn, neural: StandIn, **options: Any) -> dict[str, Any]:
    return {
        "serper": {"api_key": "k", "base_url": google.url},
        "exa": {"api_key": "k", "base_url": neural.url},
        **options,
    }


def engine(answer: Any) -> str:
    return str(answer["searchParameters"]["engine"])


async def test_the_first_backend_answers_and_the_others_are_not_asked(google: StandIn, neural: StandIn) -> None:
    options = both(google, neural, backends=["exa", "serper"])
    async with calling(search_and_scrape_webpage.create_server(**options)) as client:
        assert engine(await told_json(client, "google_search", q="a")) == "exa"
    assert google.requests == []


@pytest.mark.parametrize("fault", [Answer(status=403), Answer(status=500), Answer(b"no"), NEVER])
async def test_the_next_backend_is_asked_when_one_fails(google: StandIn, neural: StandIn, fault: Answer) -> None:
    google.reply = lambda _: fault
    options = both(google, neural, backends=["serper", "exa"], web={"total_s": 0.5, "retries": 1})
    async with calling(search_and_scrape_webpage.create_server(**options)) as client:
        assert engine(await told_json(client, "google_search", q="a")) == "exa"
    assert google.requests


async def test_a_backend_that_finds_nothing_has_answered(google: StandIn, neural: StandIn) -> None:
    google.reply = lambda _: Answer({"organic": [], "searchParameters": {"engine": "google"}})
    options = both(google, neural, backends=["serper", "exa"])
    async with calling(search_and_scrape_webpage.create_server(**options)) as client:
        assert (await told_json(client, "google_search", q="a"))["organic"] == []
    assert neural.requests == []


async def test_when_all_fail_the_reasons_of_all_are_told(google: StandIn, neural: StandIn) -> None:
    google.reply = neural.reply = lambda _: Answer(status=401)
    options = both(google, neural, backends=["serper", "exa"])
    async with calling(search_and_scrape_webpage.create_server(**options)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert answer == {
        "success": False,
        "error": "Unexpected error: serper answered 401 (check the option serper.api_key); "
        "exa answered 401 (check the option exa.api_key)",
        "results": [],
    }


async def test_what_failed_before_the_deadline_is_told_with_it(google: StandIn, neural: StandIn) -> None:
    google.reply, neural.reply = lambda _: Answer(status=401), lambda _: NEVER
    options = both(google, neural, backends=["serper", "exa"], timeout_s=0.5)
    async with calling(search_and_scrape_webpage.create_server(**options)) as client:
        answer = await told_json(client, "google_search", q="a")
    assert answer["error"] == (
        "Unexpected error: serper answered 401 (check the option serper.api_key); "
        "no search backend answered within 0.5 s"
    )


@pytest.mark.parametrize("num", [0, -3])
async def test_less_than_one_result_is_one(neural: StandIn, instance: StandIn, num: int) -> None:
    backends: dict[str, Any] = {"exa": {"api_key": "k", "base_url": neural.url}, "searxng": {"base_url": instance.url}}
    for name, settings in backends.items():
        server = search_and_scrape_webpage.create_server(backends=[name], **{name: settings})
        async with calling(server) as client:
            assert len((await told_json(client, "google_search", q="a", num=num))["organic"]) == 1


async def test_a_mistake_of_ours_is_an_error_of_the_tool_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Search, query: Query) -> Results:
        raise KeyError("x")

    monkeypatch.setattr(Search, "find", broken)
    for module in (search_and_scrape_webpage, google_search):
        async with calling(module.create_server(serper={"api_key": "k"})) as client:
            result = await client.call_tool("google_search", {"q": "a"})
            assert result.is_error
            assert text_of(result) == "Error executing tool google_search: KeyError: 'x'"


async def test_without_any_backend_a_search_fails() -> None:
    with pytest.raises(SearchFailed, match="no search backend is configured"):
        await first_results(Query("a"), [], timeout=5)


async def test_only_failures_of_a_search_lead_to_the_next_backend() -> None:
    async def broken(_: Query) -> Results:
        raise KeyError("a mistake in the backend is not to be hidden")

    with pytest.raises(KeyError):
        await first_results(Query("a"), [("broken", broken), ("next", broken)], timeout=5)


async def test_servers_of_a_hub_share_answers_and_connections(google: StandIn, neural: StandIn) -> None:
    orders = {search_and_scrape_webpage: ["serper"], google_search: ["serper", "exa"]}
    async with open_shared_resources() as resources:
        for task in ("one", "two", "three"):
            for module, backends in orders.items():
                options = both(google, neural, backends=backends if task == "one" else ["serper"])
                server = module.create_server(context=BuiltinContext(task, resources=resources), **options)
                async with calling(server) as client:
                    await told_json(client, "google_search", q="a", page=1)
    # The two servers ask in different ways, tasks do not.
    assert len(google.requests) == 2
    assert google.connections == 1


async def test_other_keys_are_other_questions(google: StandIn, neural: StandIn) -> None:
    async with open_shared_resources() as resources:
        for key in ("k-1", "k-2"):
            serper = {"api_key": key, "base_url": google.url}
            server = search_and_scrape_webpage.create_server(
                context=BuiltinContext("task", resources=resources), serper=serper
            )
            async with calling(server) as client:
                await told_json(client, "google_search", q="a")
        assert "k-1" not in repr(resources)
    assert [request.headers["x-api-key"] for request in google.requests] == ["k-1", "k-2"]


async def test_a_cancelled_search_takes_nothing_from_those_who_wait_for_the_same(
    google: StandIn, neural: StandIn
) -> None:
    gate, answers = anyio.Event(), []
    google.reply = lambda request: replace(serper(request), held=gate)

    async def ask(client: Client) -> None:
        answers.append(await told_json(client, "google_search", q="a"))

    async with open_shared_resources() as resources:
        server = search_and_scrape_webpage.create_server(
            context=BuiltinContext("task", resources=resources), **both(google, neural)
        )
        async with calling(server) as client, anyio.create_task_group() as patient:
            async with anyio.create_task_group() as hasty:
                hasty.start_soon(ask, client)
                await google.asked.wait()
                patient.start_soon(ask, client)
                while not resources.statistics()["cache search 600"]["joined"]:
                    await anyio.lowlevel.checkpoint()
                hasty.cancel_scope.cancel()
            gate.set()
    assert [len(answer["organic"]) for answer in answers] == [2]
    assert len(google.requests) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, r"backend 'serper' needs the option serper\.api_key: .*\$\{SERPER_API_KEY\}.* variable SERPER_API_KEY"),
        ({"serper": {"api_key": ""}}, r"serper\.api_key"),
        ({"serper": None}, r"serper\.api_key"),
        ({"backends": ["exa"]}, r"exa\.api_key.*EXA_API_KEY"),
        ({"backends": ["searxng"]}, r"searxng\.base_url.*SEARXNG_BASE_URL"),
        ({"backends": ["sogou"]}, r"sogou\.secret_id.*TENCENTCLOUD_SECRET_ID.*; .*sogou\.secret_key"),
        ({"backends": [], "sogou": {"secret_id": "a"}}, r"sogou\.secret_id .* and sogou\.secret_key .* go together"),
        ({"backends": ["local"]}, r"local\.folder"),
        ({"backends": ["local"], "local": {"folder": "/no/such"}}, r"local\.folder '/no/such' is not a directory"),
        ({"backends": ["google"]}, r"option backends\.0: Input should be 'serper', "),
        (
            {"serper": {"api_key": "k", "base_url": "serper.dev"}},
            r"option serper\.base_url: 'serper.dev' is not an http",
        ),
        ({"serper": {"key": "k"}}, r"option serper\.key: Extra inputs are not permitted"),
        ({"backends": [], "web": {"total_s": -1}}, r"option web\.total_s: "),
        ({"backends": [], "web": 3}, r"option web: "),
    ],
)
@pytest.mark.parametrize("module", [search_and_scrape_webpage, google_search])
def test_an_unusable_option_is_named_when_the_server_is_made(
    module: ModuleType, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        module.create_server(**options)
    assert "\n" not in str(caught.value)


def test_one_of_sogous_keys_alone_is_an_unusable_option() -> None:
    with pytest.raises(ValueError, match="go together"):
        sogou_search.create_server(sogou={"secret_key": "s3cret"})


def test_an_unusable_option_shows_no_secret() -> None:
    with pytest.raises(ValueError) as caught:
        read_settings({"serper": {"api_key": {"s3cret": 1}}, "exa": {"api_key": ["s3cret"]}})
    assert "s3cret" not in str(caught.value)


def test_settings_do_not_show_keys() -> None:
    settings = read_settings(
        {
            "serper": {"api_key": "s3cret"},
            "exa": {"api_key": "s3cret"},
            "sogou": {"secret_id": "a", "secret_key": "s3cret"},
        }
    )
    assert "s3cret" not in repr(settings)


def test_what_is_not_said_about_the_web_is_as_searching_needs_it() -> None:
    settings = read_settings({"backends": [], "web": {"retries": 5}})
    assert (settings.web.retries, settings.web.per_host, settings.web.total_s) == (5, 32, 20)
