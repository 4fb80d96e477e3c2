"""Several model servers: affinity, failover, load, warming."""

from __future__ import annotations

import anyio
import pytest
from llm_stand_in.answers import cut, failed, said, stalled
from llm_stand_in.model_server import open_model_server
from toolhub_agent.errors import AnswerUnreadable
from toolhub_agent.llm import open_llm
from toolhub_agent.llm.client import group_by_prefix, prefix_key
from toolhub_agent.llm.endpoint_pool import rendezvous_order

from tests.toolhub_agent.llm.llm_asking import HELLO, ask, settings

pytestmark = pytest.mark.anyio
PREFIX = ({"role": "system", "content": "You search. " * 50},)


@pytest.fixture
def ordered(server, other_server):
    """The two servers in the order in which the conversation `task` prefers them."""
    by_url = {server.url: server, other_server.url: other_server}
    return [by_url[url] for url in rendezvous_order("task", by_url)]


async def test_a_conversation_stays_where_its_prefix_is(ordered):
    home, other = ordered
    async with open_llm(settings(home, other)) as llm:
        for _ in range(4):
            await llm.complete(ask())
        assert llm.pool.router.of("task") == home.url
    assert (len(home.chats), len(other.chats)) == (4, 0)


async def test_a_dead_server_is_left_at_once_and_without_a_pause_for_the_next(ordered, monkeypatch):
    monkeypatch.setattr("toolhub_agent.llm.errors.FIRST_PAUSE_S", 1e6)  # any pause would end the turn
    home, other = ordered
    home.script(cut("a", after=0))
    async with open_llm(settings(home, other)) as llm:
        told = await llm.complete(ask())
        assert (told.endpoint, told.attempts) == (other.url, 2)
        assert llm.pool.router.of("task") == other.url
        assert llm.statistics().endpoints[home.url].is_failing


async def test_a_server_that_breaks_off_an_answer_gets_no_more_turns_for_now(ordered):
    home, other = ordered
    home.script(cut("one", "two"))
    async with open_llm(settings(home, other)) as llm:
        with pytest.raises(AnswerUnreadable):
            await llm.complete(ask())
        assert (await llm.complete(ask())).endpoint == other.url


async def test_conversations_of_a_server_that_ended_are_all_answered_by_the_other(server):
    with open_model_server() as ending:
        config = settings(server, ending)
        names = [name for n in range(60) if rendezvous_order(name := f"task-{n}", config.endpoints)[0] == ending.url]
        async with open_llm(config) as llm:
            assert (await llm.complete(ask(names[0]))).endpoint == ending.url
    async with open_llm(config) as llm, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(llm.complete, ask(name))
    assert len(server.chats) == len(names) > 10


async def test_a_conversation_returns_home_when_that_works_again(ordered, monkeypatch):
    monkeypatch.setattr("toolhub_agent.llm.endpoint_pool.FIRST_BACKOFF_S", 0.0)
    home, other = ordered
    home.script(failed(500))
    async with open_llm(settings(home, other)) as llm:
        endpoints = [(await llm.complete(ask())).endpoint for _ in range(2)]
    assert endpoints[-1] == home.url


async def test_a_busy_server_spills_new_turns_to_the_next(ordered):
    home, other = ordered
    home.usual = lambda _: stalled(after=0)
    sessions = [name for n in range(200) if rendezvous_order(name := f"t{n}", [home.url, other.url])[0] == home.url][:6]
    async with open_llm(settings(home, other, load_imbalance_threshold=4)) as llm, anyio.create_task_group() as tasks:
        for session in sessions[:4]:
            tasks.start_soon(llm.complete, ask(session))
        with anyio.fail_after(30):
            await home.wait_until(lambda running: running.running == 4)
            told = await llm.complete(ask(sessions[4]))
        assert told.endpoint == other.url
        home.release()


async def test_the_engines_own_queue_counts_as_load(ordered):
    home, other = ordered
    home.load.waiting, home.load.running = 30, 8
    async with open_llm(settings(home, other, metrics_interval_s=0.05)) as llm:
        async with llm.pool.limiter.hold(home.url, deadline=anyio.current_time() + 10):  # somebody is at work
            with anyio.fail_after(30):
                while llm.pool.load(home.url) < 38:
                    await anyio.sleep(0.01)
            assert llm.pool.router.of("task") == other.url


async def test_slots_follow_the_engines_queue(server):
    server.load.waiting, server.load.running = 40, 8
    async with open_llm(settings(server, metrics_interval_s=0.05)) as llm:
        async with llm.pool.limiter.hold(server.url, deadline=anyio.current_time() + 10):
            with anyio.fail_after(30):
                while llm.pool.limiter.statistics(server.url).limit > 8:
                    await anyio.sleep(0.01)


async def test_an_engine_without_metrics_is_given_the_start_value_and_left_alone(server):
    server.load.dialect = ""
    async with open_llm(settings(server, metrics_interval_s=0.01)) as llm:
        async with llm.pool.limiter.hold(server.url, deadline=anyio.current_time() + 10):
            with anyio.fail_after(30):
                await server.wait_until(lambda running: len(running.asked("/metrics")) == 1)
                await llm.complete(ask())
            assert llm.pool.limiter.statistics(server.url).limit == 64
    assert len(server.asked("/metrics")) == 1


async def test_a_fixed_number_of_slots_needs_no_metrics(server):
    async with open_llm(settings(server, max_in_flight=2, metrics_interval_s=0.01)) as llm:
        await llm.complete(ask())
        assert llm.pool.limiter.statistics(server.url).limit == 2
    assert server.asked("/metrics") == []


async def test_a_prefix_is_warmed_once_per_server_however_many_ask(ordered):
    body = {"tools": [{"type": "function", "function": {"name": "s-t"}}]}
    async with open_llm(settings(*ordered)) as llm:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(llm.prefetch_prefix, PREFIX, body)
        await llm.prefetch_prefix(PREFIX, body)
        told = await llm.complete(ask(messages=(*PREFIX, *HELLO), body=body))
    for server in ordered:
        (warm,) = [seen for seen in server.chats if seen.body["max_tokens"] == 1]
        assert warm.body == {"model": "m", "messages": list(PREFIX), "max_tokens": 1, "stream": False, **body}
    assert told.usage.cached_tokens > 100


async def test_another_prefix_or_other_tools_are_warmed_for_themselves(server):
    async with open_llm(settings(server)) as llm:
        await llm.prefetch_prefix(PREFIX, {})
        await llm.prefetch_prefix(PREFIX, {"tools": []})
        await llm.prefetch_prefix(HELLO, {})
    assert len(server.chats) == 3


async def test_a_warm_up_that_fails_harms_nobody_and_is_done_again(ordered):
    home, other = ordered
    home.script(failed(400, "a chat needs a user"))
    async with open_llm(settings(home, other)) as llm:
        first = await llm.prefetch_prefix(PREFIX, {})
        second = await llm.prefetch_prefix(PREFIX, {})
    assert first[home.url] is None and first[other.url].prompt_tokens > 100
    assert second[home.url].prompt_tokens > 100


async def test_when_the_one_that_warms_is_cancelled_another_does_it(server):
    server.script(stalled(after=0), said("x"))
    async with open_llm(settings(server)) as llm:
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def leader() -> None:
                with scope:
                    await llm.prefetch_prefix(PREFIX, {})

            found = []

            async def follower() -> None:
                found.append(await llm.prefetch_prefix(PREFIX, {}))

            tasks.start_soon(leader)
            with anyio.fail_after(30):
                await server.wait_until(lambda running: running.running == 1)
            tasks.start_soon(follower)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert found[0][server.url] is not None and len(server.chats) == 2


def test_tasks_with_the_same_prefix_start_together_in_the_order_of_their_first():
    tasks = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)]
    assert [number for _, number in group_by_prefix(tasks, lambda task: task[0])] == [1, 3, 2, 5, 4]


def test_a_prefix_is_known_by_all_that_shapes_it():
    keys = {prefix_key(PREFIX, {}), prefix_key(PREFIX, {"tools": []}), prefix_key(HELLO, {})}
    assert len(keys) == 3 and prefix_key(list(PREFIX), {}) in keys
