"""The client against a model server that does not behave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import pytest
from llm_stand_in.answers import Answer, Fault, cut, failed, said, stalled
from toolhub_agent.errors import AnswerUnreadable, ContextTooLong, LlmRefused, LlmUnavailable
from toolhub_agent.llm import open_llm
from toolhub_agent.types import Delta

from tests.toolhub_agent.llm.llm_asking import ask, settings

pytestmark = pytest.mark.anyio
SECRET = "sk-very-secret-key"


@pytest.mark.parametrize(
    "fault",
    [
        failed(500),
        failed(429, retry_after="0"),
        failed(503, retry_after=format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)),
        cut("a", after=0),
        Answer(raw='{"choices": []}'),
        Answer(raw="data: {}\n\n", content_type="text/event-stream"),
        Answer(fault=Fault.MALFORMED, after=0),
        Answer(fault=Fault.UNFINISHED, after=0),
        Answer(fault=Fault.ERROR, error={"error": {"message": "engine died", "code": 500}}),
    ],
    ids=["500", "429", "503-date", "cut", "json", "empty", "malformed", "unfinished", "error-event"],
)
async def test_a_fault_before_the_first_piece_is_only_seen_in_the_number_of_attempts(server, fault):
    server.script(fault, said("fine"))
    async with open_llm(settings(server)) as llm, llm.stream(ask()) as stream:
        with anyio.fail_after(30):
            assert [delta async for delta in stream] == [Delta("fine")]
        assert stream.completion.attempts == 2
        assert llm.pool.limiter.statistics(server.url).in_use == 0


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (cut("one", "two"), "RemoteProtocolError"),
        (Answer(("one", "two"), fault=Fault.MALFORMED, after=1), "not JSON"),
        (Answer(("one", "two"), fault=Fault.UNFINISHED, after=1), "ended before the answer did"),
        (Answer(("one", "two"), fault=Fault.ERROR, after=1, error={"error": {"message": "died", "code": 500}}), "died"),
    ],
    ids=["cut", "malformed", "unfinished", "error-event"],
)
async def test_a_fault_after_the_first_piece_is_told_and_not_repeated(server, fault, cause):
    server.script(fault)
    async with open_llm(settings(server)) as llm:
        with pytest.raises(AnswerUnreadable, match=cause):
            async with llm.stream(ask()) as stream:
                assert await anext(stream) == Delta("one")
                await anext(stream)
        assert llm.pool.limiter.statistics(server.url).in_use == 0
    assert len(server.chats) == 1


async def test_a_stream_that_stalls_ends_at_the_attempts_deadline(server):
    server.script(stalled("one", "two", after=1))
    async with open_llm(settings(server, attempt_timeout_s=0.5)) as llm:
        with anyio.fail_after(30), pytest.raises(AnswerUnreadable, match="no end of the answer within 0"):
            await llm.complete(ask())
        await server.wait_until(lambda running: running.running == 0)


async def test_a_server_that_says_nothing_is_asked_again(server):
    server.script(stalled("one", after=0), said("fine"))
    async with open_llm(settings(server, attempt_timeout_s=0.5)) as llm:
        with anyio.fail_after(30):
            told = await llm.complete(ask())
    assert (told.text, told.attempts) == ("fine", 2)
    assert told.waited >= 0.5 > told.ttft


async def test_the_turn_ends_at_its_own_deadline_whatever_the_attempts(server):
    server.usual = lambda _: stalled(after=0)
    async with open_llm(settings(server, total_timeout_s=0.5)) as llm:
        with anyio.fail_after(30), pytest.raises(LlmUnavailable, match="no answer after 1 attempts"):
            await llm.complete(ask())


async def test_the_wait_for_a_slot_counts_as_time_of_the_turn(server):
    async with open_llm(settings(server, max_in_flight=1, total_timeout_s=0.3)) as llm:
        async with llm.pool.limiter.hold(server.url, deadline=anyio.current_time() + 10):
            with anyio.fail_after(30), pytest.raises(LlmUnavailable, match="no slot became free") as raised:
                await llm.complete(ask())
    assert raised.value.endpoint == server.url and server.chats == []


async def test_attempts_are_bounded_and_the_error_names_place_number_and_cause(server):
    server.usual = lambda _: failed(500, "CUDA out of memory")
    async with open_llm(settings(server, attempts=3)) as llm:
        with pytest.raises(LlmUnavailable, match="after 3 attempts in .* 500: CUDA out of memory") as raised:
            await llm.complete(ask())
    assert (raised.value.endpoint, raised.value.status) == (server.url, 500)
    assert len(server.chats) == 3


async def test_a_pause_that_the_turn_has_no_time_for_is_not_begun(server):
    server.script(failed(429, retry_after="3600"))
    async with open_llm(settings(server, total_timeout_s=30)) as llm:
        with anyio.fail_after(30), pytest.raises(LlmUnavailable, match=r"429: not now; after the pause of 3600\.\d s"):
            await llm.complete(ask())
    assert len(server.chats) == 1


async def test_a_server_that_is_not_there_is_named():
    with anyio.fail_after(20):
        async with open_llm(settings(endpoints=["http://127.0.0.1:9/v1"], attempts=2)) as llm:
            with pytest.raises(LlmUnavailable, match="after 2 attempts .* http://127.0.0.1:9/v1: ConnectError"):
                await llm.complete(ask())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_is_told_at_once_with_the_servers_words(server, status):
    server.script(failed(status, "top_k must be positive"))
    async with open_llm(settings(server)) as llm:
        with pytest.raises(LlmRefused, match=f"{status}: top_k must be positive") as raised:
            await llm.complete(ask())
    assert (raised.value.status, raised.value.endpoint, len(server.chats)) == (status, server.url, 1)
    assert not isinstance(raised.value, ContextTooLong)


@pytest.mark.parametrize(
    "answer",
    [
        failed(400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."),
        failed(400, "no", code="context_length_exceeded"),
        Answer(
            fault=Fault.ERROR,
            error={"error": {"message": "The input (5 tokens) is longer than the model's context length", "code": 400}},
        ),
    ],
    ids=["vllm", "openai", "inside the stream"],
)
async def test_a_prompt_that_does_not_fit_has_an_error_of_its_own(server, answer):
    server.script(answer)
    async with open_llm(settings(server)) as llm:
        with pytest.raises(ContextTooLong):
            await llm.complete(ask())
    assert len(server.chats) == 1


async def test_a_model_that_repeats_itself_is_stopped_while_it_does(server):
    server.script(said(*["Let me look at the harbour of Emden once more, and then decide. "] * 3000))
    async with open_llm(settings(server)) as llm:
        pieces = 0
        with pytest.raises(AnswerUnreadable, match="repeats itself"):
            async with llm.stream(ask()) as stream:
                async for _ in stream:
                    pieces += 1
    assert pieces < 100


async def test_an_answer_cut_at_its_length_is_an_answer(server):
    server.script(said("half", finish_reason="length"))
    async with open_llm(settings(server)) as llm:
        assert (await llm.complete(ask())).finish_reason == "length"


async def test_a_filtered_answer_is_unreadable_and_not_asked_for_again(server):
    server.script(Answer((), finish_reason="content_filter"))
    async with open_llm(settings(server)) as llm:
        with pytest.raises(AnswerUnreadable, match="content_filter"):
            await llm.complete(ask())
    assert len(server.chats) == 1


async def test_no_error_carries_a_key(server, caplog):
    caplog.set_level("DEBUG")
    server.script(failed(401, f"Incorrect API key provided: {SECRET}, team {SECRET}-team"))
    config = settings(server, api_key=SECRET, headers={"x-team-key": f"{SECRET}-team"})
    async with open_llm(config) as llm:
        with pytest.raises(LlmRefused) as raised:
            await llm.complete(ask())
        assert server.chats[0].headers["authorization"] == f"Bearer {SECRET}"
        assert SECRET not in f"{raised.value}{llm!r}{llm.statistics()}"
    assert SECRET not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("toolhub"))


async def test_keys_meant_for_openai_are_not_sent_elsewhere(server, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "for-openai-only")
    async with open_llm(settings(server, model=None)) as llm:
        await llm.complete(ask())
        await llm.prefetch_prefix(ask().messages, {})
    assert {"/v1/models", "/v1/chat/completions"} <= {seen.path for seen in server.seen}
    assert "for-openai-only" not in str([seen.headers for seen in server.seen])
    assert not any("authorization" in seen.headers for seen in server.seen)
