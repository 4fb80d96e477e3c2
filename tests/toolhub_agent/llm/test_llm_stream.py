"""The client against a model server that behaves."""

from __future__ import annotations

import anyio
import pytest
from llm_stand_in.answers import Answer, called, said, stalled
from llm_stand_in.prefix_cache import render, tokens_of
from toolhub_agent.errors import LlmRefused
from toolhub_agent.llm import open_llm
from toolhub_agent.llm.concurrency import SlotStatistics
from toolhub_agent.types import Delta

from tests.toolhub_agent.llm.llm_asking import HELLO, ask, settings

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[("asyncio", {}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


async def test_an_answer_comes_piece_by_piece_and_is_recorded(server):
    server.script(said("Hel", "lo", reasoning="hm"))
    async with open_llm(settings(server)) as llm, llm.stream(ask()) as stream:
        assert [delta async for delta in stream] == [Delta(reasoning="hm"), Delta("Hel"), Delta("lo")]
    told = stream.completion
    assert (told.text, told.reasoning, told.finish_reason, told.endpoint, told.attempts) == (
        *("Hello", "hm", "stop"),
        *(server.url, 1),
    )
    assert told.usage.prompt_tokens == len(tokens_of(render({"messages": HELLO})))
    assert 0 < told.ttft <= told.seconds
    assert 0 <= told.waited < told.seconds + 1


async def test_cached_tokens_of_the_turn_before_are_told(server):
    history = [{"role": "user", "content": "word " * 100}]
    async with open_llm(settings(server)) as llm:
        first = await llm.complete(ask(messages=tuple(history)))
        history += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and?"}]
        second = await llm.complete(ask(messages=tuple(history)))
        assert first.usage.cached_tokens == 0
        assert second.usage.cached_tokens == first.usage.prompt_tokens // 16 * 16
        sums = llm.statistics()
    assert (sums.answers, sums.attempts) == (2, 2)
    assert sums.prompt_tokens == first.usage.prompt_tokens + second.usage.prompt_tokens
    assert sums.cached_tokens == second.usage.cached_tokens


async def test_native_calls_come_as_deltas_and_whole(server):
    server.script(called(("search-find", {"q": "harbour"}), ("files-read", {"path": "a"})))
    async with open_llm(settings(server)) as llm, llm.stream(ask()) as stream:
        deltas = [delta async for delta in stream]
    assert len(deltas) == 4 and all(len(delta.tool_calls) == 1 for delta in deltas)
    names = [(call["function"]["name"], call["function"]["arguments"]) for call in stream.completion.tool_calls]
    assert names == [("search-find", '{"q": "harbour"}'), ("files-read", '{"path": "a"}')]
    assert stream.completion.finish_reason == "tool_calls"


async def test_dynamos_dispatch_event_is_handed_out(server):
    event = 'event: tool_call_dispatch\ndata: {"choice_index": 0, "tool_call": {"index": 0, "id": "c"}}\n\n'
    server.script(Answer(events=(": a comment\n\n", event)))
    async with open_llm(settings(server)) as llm, llm.stream(ask()) as stream:
        deltas = [delta async for delta in stream]
    assert deltas == [Delta(dispatched={"index": 0, "id": "c"}), Delta("ok")]


async def test_every_request_names_its_session_and_the_body_is_as_the_loop_gave_it(server):
    tools = [{"type": "function", "function": {"name": "s-t", "parameters": {}}}]
    async with open_llm(settings(server, headers={"x-team": "blue"})) as llm:
        await llm.complete(ask("task-1", body={"tools": tools}))
        await llm.complete(ask("task-1"))
    first, last = server.chats
    for name in ("x-upstream-session-id", "x-session-id", "x-smg-routing-key", "x-dynamo-session-id"):
        assert first.headers[name] == last.headers[name] == "task-1"
    assert first.headers["x-team"] == "blue"
    assert first.body["tools"] == tools and first.body["stream_options"] == {"include_usage": True}


async def test_a_routers_session_token_is_sent_back_to_it(server):
    server.script(said("a", headers={"x-session-token": "pod-7"}))
    async with open_llm(settings(server)) as llm:
        for session in ("one", "one", "two"):
            await llm.complete(ask(session))
    assert [seen.headers.get("x-session-token") for seen in server.chats] == [None, "pod-7", None]


async def test_turns_one_after_the_other_share_a_connection(server):
    async with open_llm(settings(server, max_in_flight=4)) as llm:
        for _ in range(5):
            await llm.complete(ask())
    assert len(server.connections) == 1


async def test_a_slot_is_held_only_while_the_answer_is_generated(server):
    server.script(stalled("a", "b", after=1))
    async with open_llm(settings(server, max_in_flight=1)) as llm:
        async with llm.stream(ask()) as stream:
            with anyio.fail_after(30):
                assert await anext(stream) == Delta("a")
                assert llm.pool.limiter.statistics(server.url).in_use == 1
                server.release()
                assert [delta async for delta in stream] == [Delta("b")]
                assert llm.pool.limiter.statistics(server.url).in_use == 0
                await llm.complete(ask("another"))  # it would wait for ever if the block still held the slot


async def test_no_more_requests_than_slots_are_sent_and_all_are_answered(server):
    server.usual = lambda _: stalled(after=0)
    async with open_llm(settings(server, max_in_flight=3)) as llm, anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(llm.complete, ask(f"task-{number}"))
        with anyio.fail_after(30):
            await server.wait_until(lambda running: running.running == 3)
        assert llm.pool.limiter.statistics(server.url) == SlotStatistics(limit=3, in_use=3, waiting=9)
        assert len(server.chats) == 3
        server.release()
    assert len(server.chats) == 12


async def test_leaving_early_stops_the_server_and_gives_the_slot_back(server):
    server.script(stalled("a", "b", after=1))
    async with open_llm(settings(server)) as llm:
        async with llm.stream(ask()) as stream:
            await anext(stream)
        assert llm.pool.limiter.statistics(server.url).in_use == 0
        with anyio.fail_after(30):
            await server.wait_until(lambda running: running.running == 0)
        with pytest.raises(RuntimeError, match="not ended"):
            _ = stream.completion


async def test_a_cancelled_turn_stops_the_server_and_gives_the_slot_back(server):
    server.script(stalled(after=0))
    async with open_llm(settings(server)) as llm:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(llm.complete, ask())
            with anyio.fail_after(30):
                await server.wait_until(lambda running: running.running == 1)
            tasks.cancel_scope.cancel()
        assert llm.pool.limiter.statistics(server.url).in_use == 0
        with anyio.fail_after(30):
            await server.wait_until(lambda running: running.running == 0)


async def test_the_only_model_is_asked_for_once(server):
    async with open_llm(settings(server, model=None)) as llm:
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(llm.complete, ask(f"task-{number}"))
    assert len(server.asked("/v1/models")) == 1
    assert {seen.body["model"] for seen in server.chats} == {"m"}


async def test_with_several_models_one_must_be_named(server):
    server.models = ["a", "b"]
    async with open_llm(settings(server, model=None)) as llm:
        with pytest.raises(LlmRefused, match="set llm.model: the endpoint serves 'a', 'b'"):
            await llm.complete(ask())


async def test_observers_are_told_of_turns_and_cannot_fail_them(server, caplog):
    seen = []

    def broken(*_):
        raise KeyError("observer")

    async with open_llm(settings(server)) as llm:
        llm.on_turn += [broken, lambda request, completion: seen.append((request.session, completion.text))]
        await llm.complete(ask())
    assert seen == [("task", "ok")]
    assert "an observer of turns failed" in caplog.text


async def test_errors_of_the_callers_own_block_come_out_as_they_are(server):
    with pytest.raises(KeyError):
        async with open_llm(settings(server)):
            raise KeyError
