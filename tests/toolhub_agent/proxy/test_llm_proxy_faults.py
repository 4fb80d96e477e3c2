"""What goes wrong at the engines, at clients and between them."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import anyio
import httpx2
import openai
import pytest
from llm_stand_in.answers import cut, failed, stalled
from llm_stand_in.model_server import open_model_server
from toolhub_agent.llm.endpoint_pool import rendezvous_order

from tests.toolhub_agent.proxy.llm_proxy_stage import HELLO, chat, open_stage

pytestmark = pytest.mark.anyio
SESSION = {"X-Session-ID": "task"}


@pytest.fixture
def ordered(server, other_server):
    """The two servers in the order in which the conversation `task` prefers them."""
    by_url = {each.url: each for each in (server, other_server)}
    return [by_url[url] for url in rendezvous_order("task", by_url)]


async def test_a_stream_that_breaks_ends_in_an_error_that_clients_understand(server, tmp_path):
    server.script(cut("one ", "two "))
    async with open_stage(server, folder=tmp_path) as stage, stage.client() as client:
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert (await stream.__anext__()).choices[0].delta.content == "one "
        with pytest.raises(openai.APIError, match="broke off"):
            await stream.__anext__()
        again = await client.chat.completions.create(model="m", messages=HELLO)
        assert again.choices[0].message.content == "ok"
        assert stage.metric("toolhub_llm_in_flight") == 0


async def test_a_dead_engine_is_left_for_another_before_the_client_notices(server, tmp_path):
    with ExitStack() as stack:
        ending = stack.enter_context(open_model_server())
        urls = [server.url, ending.url]
        name = next(name for n in range(99) if rendezvous_order(name := f"task-{n}", urls)[0] == ending.url)
        async with open_stage(server, ending, folder=tmp_path) as stage, stage.client() as client:
            headers = {"X-Session-ID": name}
            await client.chat.completions.create(model="m", messages=HELLO, extra_headers=headers)
            await anyio.to_thread.run_sync(stack.close)
            for stream in (False, True):
                await client.chat.completions.create(model="m", messages=HELLO, extra_headers=headers, stream=stream)
            assert stage.metric("toolhub_llm_requests_total", status="200") >= 2
    assert (len(ending.chats), len(server.chats)) == (1, 2)


async def test_no_engine_at_all_is_a_502_that_names_no_address(tmp_path):
    with open_model_server() as gone:
        pass
    async with open_stage(gone, folder=tmp_path) as stage, stage.http() as http:
        answer = await http.post("/llm/v1/chat/completions", json=chat())
        assert answer.status_code == 502 and answer.headers["retry-after"]
        assert str(gone.port) not in answer.text


async def test_a_conversation_stays_with_its_engine_and_others_spread(server, other_server, tmp_path):
    async with open_stage(server, other_server, folder=tmp_path) as stage, stage.http() as http:
        for number in range(12):
            for _ in range(2):
                body, headers = chat(f"task {number}"), {"x-upstream-session-id": f"session-{number}"}
                assert (await http.post("/llm/v1/chat/completions", json=body, headers=headers)).status_code == 200
    for one in (server, other_server):
        sessions = [seen.headers["x-smg-routing-key"] for seen in one.chats]
        assert sessions and all(sessions.count(name) == 2 for name in sessions)


async def test_a_failing_engine_gets_no_more_of_the_conversation_for_now(ordered, tmp_path):
    home, other = ordered
    home.script(failed(503))
    async with open_stage(*ordered, folder=tmp_path) as stage, stage.http() as http:
        statuses = [
            (await http.post("/llm/v1/chat/completions", json=chat(), headers=SESSION)).status_code for _ in range(2)
        ]
    assert statuses == [503, 200] and len(other.chats) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_stops_the_engine(server, tmp_path, stream):
    server.usual = lambda seen: stalled("one ", "two ", after=1 if stream else 0)
    async with open_stage(server, folder=tmp_path) as stage:
        async with stage.http() as http, anyio.create_task_group() as tasks:
            tasks.start_soon(_read_until_cancelled, http, stream)
            await server.wait_until(lambda s: s.running == 1)
            tasks.cancel_scope.cancel()
        await server.wait_until(lambda s: s.running == 0)
        with anyio.fail_after(30):
            while stage.metric("toolhub_llm_in_flight"):
                await anyio.sleep(0.01)
        assert stage.metric("toolhub_llm_slots", state="in_use") == 0
        assert stage.metric("toolhub_llm_requests_total", status="499") == 1


async def _read_until_cancelled(http: httpx2.AsyncClient, stream: bool) -> None:
    async with http.stream("POST", "/llm/v1/chat/completions", json=chat(stream=stream)) as answer:
        async for _ in answer.aiter_raw():
            pass


async def test_a_flood_waits_here_in_order_and_all_are_answered(server, tmp_path):
    async with open_stage(server, folder=tmp_path, max_in_flight=2) as stage, stage.http() as http:
        server.usual = lambda seen: stalled(after=0)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(_ask, http, f"number {number}")
                with anyio.fail_after(30):
                    while stage.metric("toolhub_llm_in_flight") != number + 1:
                        await anyio.sleep(0.001)
            await server.wait_until(lambda s: s.running == 2)
            assert stage.metric("toolhub_llm_slots", state="waiting") == 18
            assert (server.most_running, len(server.chats)) == (2, 2)
            server.release()
        assert stage.metric("toolhub_llm_requests_total", status="200") == 20
    asked = [int(seen.body["messages"][0]["content"].split()[1]) for seen in server.chats]
    assert sorted(asked) == list(range(20))
    assert all(abs(place - number) <= 1 for place, number in enumerate(asked))  # two are under way at once


async def _ask(http: httpx2.AsyncClient, content: str) -> None:
    answer = await http.post("/llm/v1/chat/completions", json=chat(content), timeout=60)
    assert answer.status_code == 200


async def test_a_wait_that_cannot_be_met_is_told_with_a_time_to_come_again(server, tmp_path, monkeypatch):
    async with (
        open_stage(server, folder=tmp_path, max_in_flight=1, total_timeout_s=0.2) as stage,
        stage.http() as http,
    ):
        slots = stage.proxy._pool.limiter
        async with slots.hold(server.url, deadline=anyio.current_time() + 5):
            late = await http.post("/llm/v1/chat/completions", json=chat())
            assert late.status_code == 503 and late.headers["retry-after"]
            monkeypatch.setattr("toolhub_agent.proxy.forward.MAX_WAITING", 0)
            full = await http.post("/llm/v1/chat/completions", json=chat())
            assert full.status_code == 429 and full.headers["retry-after"]
    assert server.chats == []


async def test_bodies_that_are_held_at_once_are_bounded(server, tmp_path, monkeypatch):
    monkeypatch.setattr("toolhub_agent.proxy.app.MAX_BODIES_BYTES", 3000)
    server.usual = lambda seen: stalled(after=0)
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_ask, http, "x" * 2000)
            await server.wait_until(lambda s: s.running == 1)
            refused = await http.post("/llm/v1/chat/completions", json=chat("x" * 2000))
            assert refused.status_code == 429 and refused.headers["retry-after"]
            server.release()
        assert (await http.post("/llm/v1/chat/completions", json=chat("x" * 2000))).status_code == 200


async def test_an_engine_that_never_answers_is_given_up_in_time(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:

        class Silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"

        async with (
            open_stage(Silent(), folder=tmp_path, attempt_timeout_s=0.2, max_in_flight=4) as stage,  # type: ignore[arg-type]
            stage.http() as http,
        ):
            answer = await http.post("/llm/v1/chat/completions", json=chat(stream=True))
    assert answer.status_code == 504


async def test_a_proxy_that_is_not_used_sends_nothing_and_follows_nothing(server, tmp_path):
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        assert (await http.get("/metrics")).status_code == 200
        assert len(stage.proxy._registry) == 0
    assert server.seen == []
