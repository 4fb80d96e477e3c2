"""Asking a model: what is sent, what is tried again, and what is told when there is no answer."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from toolhub_servers.models import api as _model_api
from toolhub_servers.models.api import (
    InvalidResponse,
    ModelApi,
    ModelError,
    ModelSettings,
    part_of_image,
    text_of,
    without_thinking,
)
from toolhub_servers.models.media import Media
from toolhub_servers.serving.server import ServerContext

from tests.toolhub_servers.models.media_standins import KEY, PATIENCE_S, Service, wav
from toolhub.extensions import BuiltinContext
from toolhub.shared_resources import open_shared_resources

pytestmark = pytest.mark.anyio


class Settings(ModelSettings):
    VARIABLES = {"api_key": "SOME_API_KEY", "base_url": "SOME_BASE_URL"}
    REQUIRED = ("api_key", "base_url", "model")


@pytest.fixture
async def lobby() -> AsyncIterator[ServerContext]:
    async with open_shared_resources() as resources:
        with anyio.fail_after(PATIENCE_S):
            yield ServerContext(BuiltinContext("task", resources=resources))


def api(lobby: ServerContext, service: Service, **options: Any) -> ModelApi:
    given = {"api_key": KEY, "base_url": f"{service.url}/v1", "model": "some-model", **options}
    return ModelApi(lobby, Settings.model_validate(given))


def asking(_: str) -> list[Any]:
    return [{"role": "user", "content": "why?"}]


async def chat(api: ModelApi) -> str:
    return text_of(await api.chat("/chat/completions", asking))


async def failure(api: ModelApi) -> str:
    with pytest.raises(ModelError) as failed:
        await chat(api)
    return str(failed.value)


async def test_a_question_is_one_request_with_the_key_in_its_header(lobby: ServerContext, service: Service) -> None:
    message = await api(lobby, service).chat("/chat/completions", asking, temperature=0.5)
    assert text_of(message) == "a red square"
    (asked,) = service.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.json == {"model": "some-model", "messages": asking(""), "temperature": 0.5}


@pytest.mark.parametrize("size", [0, 1, 1000, _model_api._STEP_BYTES, 2 * _model_api._STEP_BYTES + 7])
async def test_data_arrive_whole_in_the_place_that_is_meant_for_them(
    lobby: ServerContext, service: Service, size: int
) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    await api(lobby, service).chat("/chat/completions", lambda mark: [part_of_image(f"data:x/y;base64,{mark}")], data)
    url = service.asked[0].json["messages"][0]["image_url"]["url"]
    assert base64.b64decode(url.removeprefix("data:x/y;base64,")) == data or not size


async def test_a_question_is_sent_as_it_is_whatever_is_in_it(lobby: ServerContext, service: Service) -> None:
    question = 'é "\\ \n {} %s \u2028 \U0001f600 \ud800'
    await api(lobby, service).chat("/chat/completions", lambda _: [{"role": "user", "content": question}])
    assert service.asked[0].json["messages"][0]["content"] == question


async def test_a_recording_is_sent_as_a_form_under_a_name_that_fits(lobby: ServerContext, service: Service) -> None:
    service.answer = "hello"
    assert await api(lobby, service).transcribe(Media(wav(), "audio/wav")) == "hello"
    (asked,) = service.asked
    assert asked.path == "/v1/audio/transcriptions"
    assert asked.form == {"model": "some-model", "file": ("audio.wav", "audio/wav", wav())}


async def test_without_a_key_none_is_sent_if_the_service_needs_none(lobby: ServerContext, service: Service) -> None:
    settings = ModelSettings(base_url=f"{service.url}/v1", model="some-model")
    assert await chat(ModelApi(lobby, settings)) == "a red square"
    assert "authorization" not in service.asked[0].headers


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("api_key", "SOME_API_KEY is not set (option 'api_key' of this server)"),
        ("base_url", "SOME_BASE_URL is not set (option 'base_url' of this server)"),
        ("model", "model is not set (option 'model' of this server)"),
    ],
)
async def test_what_is_not_set_is_named_and_nothing_is_sent(
    lobby: ServerContext, service: Service, missing: str, told: str
) -> None:
    assert await failure(api(lobby, service, **{missing: ""})) == told
    assert service.asked == []


@pytest.mark.parametrize("url", ["ftp://example.org", "example.org/v1", "http://", "https://exa mple.org"])
def test_an_address_that_is_none_is_refused_at_once_with_option_and_variable(url: str) -> None:
    with pytest.raises(ValueError, match=r"base_url \(SOME_BASE_URL\) is not the http\(s\) URL of a service"):
        Settings(base_url=url)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://10.0.0.5:8000/v1", "10.0.0.5:8000"),
        ("https://models.example/v1", "models.example:443"),
        ("http://[::1]/v1", "[::1]:80"),
    ],
)
def test_the_operators_own_service_may_be_private_and_no_other(url: str, place: str) -> None:
    assert Settings(base_url=url).client().allow_private == [place]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_passing_failure_is_tried_again(lobby: ServerContext, service: Service, status: int) -> None:
    service.stage(JSONResponse({"error": {"message": "busy"}}, status, {"Retry-After": "0"}))
    assert await chat(api(lobby, service)) == "a red square"
    assert len(service.asked) == 2


async def test_a_failure_that_stays_is_told_in_the_services_own_words(lobby: ServerContext, service: Service) -> None:
    service.stage(*[JSONResponse({"error": {"message": "no  room\nhere"}}, 500) for _ in range(2)])
    told = await failure(api(lobby, service))
    assert told == f"{service.place} answered 500 Internal Server Error (try 2): no room here"


async def test_a_request_to_wait_longer_than_there_is_time_is_not_waited_for(
    lobby: ServerContext, service: Service
) -> None:
    service.stage(JSONResponse({}, 429, {"Retry-After": "3600"}))
    assert "answered 429 Too Many Requests" in await failure(api(lobby, service))
    assert len(service.asked) == 1


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_lasting_failure_is_not_tried_again(lobby: ServerContext, service: Service, status: int) -> None:
    service.stage(JSONResponse({"detail": "no"}, status))
    assert (await failure(api(lobby, service))).endswith(": no")
    assert len(service.asked) == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"error": "plain"}', "plain"),
        ('{"message": "flat"}', "flat"),
        ('{"detail": [{"msg": "field required"}]}', '[{"msg": "field required"}]'),
        ("<html>  Bad\nGateway </html>", "<html> Bad Gateway </html>"),
        ('"text"', "text"),
        ('{"error": {"code": 7}}', '{"code": 7}'),
    ],
)
async def test_a_failure_is_told_however_the_service_says_it(
    lobby: ServerContext, service: Service, body: str, told: str
) -> None:
    service.stage(PlainTextResponse(body, 400))
    assert await failure(api(lobby, service)) == f"{service.place} answered 400 Bad Request: {told}"


async def test_a_failure_without_words_ends_with_the_status(lobby: ServerContext, service: Service) -> None:
    service.stage(Response(status_code=400))
    assert await failure(api(lobby, service)) == f"{service.place} answered 400 Bad Request"


async def test_the_key_is_never_told_even_if_the_service_repeats_it(lobby: ServerContext, service: Service) -> None:
    service.stage(JSONResponse({"error": {"message": f"Incorrect API key: {KEY}."}}, 401), PlainTextResponse(KEY))
    assert (await failure(api(lobby, service))).endswith("Incorrect API key: ***.")
    assert KEY not in await failure(api(lobby, service))
    assert KEY not in repr(api(lobby, service)) + repr(Settings(api_key=KEY))


async def test_an_error_with_status_200_is_an_error(lobby: ServerContext, service: Service) -> None:
    service.stage(JSONResponse({"error": {"message": "model not loaded"}}))
    assert await failure(api(lobby, service)) == "model not loaded"


async def test_a_service_that_does_not_answer_is_given_up_in_time(lobby: ServerContext, service: Service) -> None:
    service.go_on = anyio.Event()
    assert await failure(api(lobby, service, timeout_s=0.2)) == (
        f"{service.place} did not answer completely within 0.2 s"
    )


async def test_a_service_that_is_not_there_is_told(lobby: ServerContext, service: Service) -> None:
    told = await failure(api(lobby, service, base_url="http://127.0.0.1:1/v1"))
    assert told.startswith("no connection to 127.0.0.1:1: ")


async def test_a_cancelled_question_ends_at_once(lobby: ServerContext, service: Service) -> None:
    service.go_on = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chat, api(lobby, service))
        await service.wait_asked(1)
        tasks.cancel_scope.cancel()
    service.go_on.set()
    assert await chat(api(lobby, service)) == "a red square"


async def test_questions_do_not_wait_for_each_other(lobby: ServerContext, service: Service) -> None:
    """All are with the service before it answers the first; more than any other host would get at a time."""
    service.go_on = anyio.Event()
    answers: list[str] = []

    async def ask() -> None:
        answers.append(await chat(api(lobby, service)))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
        await service.wait_asked(20)
        assert answers == []
        service.go_on.set()
    assert answers == ["a red square"] * 20


async def test_no_more_questions_are_asked_at_a_time_than_the_option_says(
    lobby: ServerContext, service: Service
) -> None:
    service.go_on = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(chat, api(lobby, service, concurrency=2))
        await service.wait_asked(2)
        await anyio.wait_all_tasks_blocked()
        assert len(service.asked) == 2
        service.go_on.set()
    assert len(service.asked) == 5


async def test_an_address_may_end_with_a_slash(lobby: ServerContext, service: Service) -> None:
    await chat(api(lobby, service, base_url=f"{service.url}/v1/"))
    assert service.asked[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("body", ["", "{", "<html>", "[]", '"x"', "null", "{}", '{"choices": 1}', '{"choices": [{}]}'])
async def test_an_answer_of_another_shape_is_told_apart(lobby: ServerContext, service: Service, body: str) -> None:
    service.stage(PlainTextResponse(body))
    with pytest.raises(InvalidResponse):
        await chat(api(lobby, service))


@pytest.mark.parametrize("answer", [{"choices": []}, {"choices": None}, {"choices": [{"message": {"content": None}}]}])
async def test_an_answer_without_words_is_an_empty_text(lobby: ServerContext, service: Service, answer: Any) -> None:
    service.stage(JSONResponse(answer))
    assert await chat(api(lobby, service)) == ""


async def test_an_answer_in_parts_is_one_text(lobby: ServerContext, service: Service) -> None:
    service.answer = {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}
    assert await chat(api(lobby, service)) == "a b"


async def test_all_servers_of_a_hub_share_the_connections_to_a_service(lobby: ServerContext, service: Service) -> None:
    for _ in range(3):
        await chat(api(lobby, service))
    assert repr(lobby.resources).count("http models") == 1


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>hm</think>\n\nyes", "yes"),
        ("hm</think> yes </think> no", "yes </think> no"),
        ("yes", "yes"),
        (" yes\n", " yes\n"),
        ("<think>hm</think>", ""),
    ],
)
def test_what_comes_before_the_end_of_thinking_is_left_out(text: str, rest: str) -> None:
    assert without_thinking(text) == rest
