"""Tool waits from the first signal to the resumed turn, in virtual time, on a stand-in engine (see hint_stage)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from llm_stand_in.prefix_cache import render, tokens_of
from toolhub_agent.kv_hints.engines import PREFETCH_ID_PREFIX
from toolhub_agent.kv_hints.signals import HistoryRewritten, ToolResultReady, ToolWaitStarted

from tests.toolhub_agent.kv_hints.hint_stage import (
    OVERHEAD_S,
    PER_TOKEN_S,
    URL,
    Agent,
    Engine,
    after_first_turn,
    opened,
    tools_take,
    virtual_time,
)

pytestmark = [pytest.mark.anyio, pytest.mark.quick]

PREFILL_S = 6000 * PER_TOKEN_S


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time()


async def test_after_an_eviction_the_turn_starts_as_fast_as_if_nothing_had_been_evicted():
    engine = Engine()
    async with opened(engine, mode="off") as hints:
        agent = Agent(engine, hints)
        await agent.turn()
        reference = await agent.step()
        evicted = await agent.step(meanwhile=engine.cache.clear)
    async with opened(engine) as hints:
        agent = Agent(engine, hints, "task-2")
        tools_take(hints, 12.0)
        await agent.turn()
        warmed = await agent.step(meanwhile=engine.cache.clear)
    assert evicted > PREFILL_S
    assert warmed == pytest.approx(reference, rel=0.25)


async def test_the_prefetch_goes_out_so_that_it_ends_a_margin_before_the_tools_do():
    engine = Engine()
    async with after_first_turn(engine, 30.0, lead_time_s=1.0) as agent:
        started = anyio.current_time()
        await agent.step(30.0, meanwhile=engine.cache.clear)
    assert engine.prefetch_times == [pytest.approx(started + 30 - 1 - PREFILL_S, abs=0.5)]


async def test_the_prefetched_prompt_is_the_start_of_the_next_one_token_for_token():
    engine = Engine()
    async with after_first_turn(engine, 12.0) as agent:
        await agent.step()
    requests = engine.asked("/v1/chat/completions")
    warmed, resumed = tokens_of(render(requests[1])), tokens_of(render(requests[2]))
    assert requests[1]["max_tokens"] == 1
    assert len(warmed) > 6000
    assert resumed[: len(warmed)] == warmed


async def test_the_prefetch_repeats_what_shapes_the_prompt_and_nothing_that_shapes_the_answer():
    engine = Engine()
    shaping = {
        "model": "m",
        "tool_choice": "auto",
        "chat_template_kwargs": {"thinking": True},
        "reasoning_effort": "low",
    }
    answering = {"stream": True, "stream_options": {"include_usage": True}, "n": 2, "max_completion_tokens": 500}
    xargs = {"vllm_xargs": {"pin_ttl_s": 9.0, "mine": 1}}
    async with opened(engine) as hints:
        tools_take(hints, 12.0)
        agent = Agent(engine, hints, body={**shaping, **answering, **xargs})
        await agent.turn()
        await agent.step()
    (prefetch,) = engine.prefetches
    assert shaping.items() <= prefetch.items()
    assert not set(answering) & set(prefetch) - {"stream"}
    assert (prefetch["stream"], prefetch["max_tokens"], prefetch["add_generation_prompt"]) == (False, 1, False)
    assert prefetch["vllm_xargs"] == {"mine": 1}
    assert prefetch["request_id"].startswith(PREFETCH_ID_PREFIX)
    headers = next(headers for _, body, headers in engine.seen if body.get("max_tokens") == 1)
    assert headers["x-session-id"] == "task-1"
    assert headers["x-request-id"] == prefetch["request_id"]


async def test_a_prefetch_that_still_runs_when_the_tools_are_back_is_aborted():
    engine = Engine()
    async with after_first_turn(engine, 20.0) as agent:
        await agent.step(16.0, meanwhile=engine.cache.clear)  # sooner than expected
        assert engine.cut_short == 1
        statistics = agent.hints.statistics()
    assert (statistics.prefetches_sent, statistics.prefetches_aborted, statistics.prefetches_failed) == (1, 1, 0)
    assert agent.usages[-1].cached_tokens > 0, "what it had computed is not lost"


async def test_results_that_are_in_are_prefetched_while_a_slower_call_still_runs():
    engine = Engine()
    async with after_first_turn(engine, 2.0, 20.0) as agent:
        await agent.step(2.0, 20.0, tokens=3000)
    prefetch = engine.prefetches[-1]
    assert [message["role"] for message in prefetch["messages"]][-2:] == ["assistant", "tool"]
    assert agent.usages[-1].cached_tokens > 6000 + 3000 - 100
    assert agent.usages[-1].prompt_tokens > 6000 + 2 * 3000


async def test_results_that_arrive_behind_a_first_prefetch_get_a_second_one():
    engine = Engine()
    async with after_first_turn(engine, 18.0, 25.0, lead_time_s=0.1) as agent:
        await agent.step(21.0, 28.0, tokens=2000)
    assert [len(prefetch["messages"]) for prefetch in engine.prefetches] == [3, 4]


async def test_tools_that_never_return_get_no_more_than_the_allowed_prefetches_and_ever_later():
    engine = Engine()
    async with after_first_turn(engine, 12.0, max_prefetches=3) as agent:
        agent.hints.signal(ToolWaitStarted(agent.name, (("s", "tool0"),)))
        for _ in range(200):
            await anyio.sleep(10)
            engine.cache.clear()
        assert len(engine.prefetches) == 3
    first, second, third = engine.prefetch_times
    assert third - second > second - first


async def test_never_are_two_requests_under_way_for_one_session():
    engine = Engine()
    async with after_first_turn(engine, 20.0, 40.0, lead_time_s=0) as agent:
        # The first result is there while the first prefetch runs.
        await agent.step(36.0, 100.0, tokens=3000, meanwhile=engine.cache.clear)
    assert len(engine.prefetches) >= 2
    assert engine.most_prefetches == 1


async def test_a_session_that_admission_has_paused_gets_no_prefetch():
    engine = Engine()
    async with after_first_turn(engine, 12.0, more={"may_prefetch": lambda _session: False}) as agent:
        await agent.step()
        assert agent.hints.statistics().prefetches_skipped == {"admission has paused the conversation": 1}
    assert engine.prefetches == []


async def test_sessions_do_not_wait_for_each_other():
    engine = Engine()
    async with opened(engine) as hints, anyio.create_task_group() as tasks:
        tools_take(hints, 12.0)
        agents = [Agent(engine, hints, f"task-{n}") for n in range(4)]
        for agent in agents:
            await agent.turn()
        for agent in agents:
            tasks.start_soon(agent.wait, 12.0)
    assert engine.most_prefetches == 4


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"min_prefix_tokens": 10_000}, "short prefix"),
        ({"lead_time_s": 11.0}, "tools return sooner than a prefetch"),
        ({"max_load": 5}, "endpoint is busy"),
    ],
)
async def test_a_wait_without_a_prefetch_says_why(settings, reason):
    engine = Engine()
    async with after_first_turn(engine, 12.0, more={"load_of": lambda _url: 6}, **settings) as agent:
        await agent.step()
        assert agent.hints.statistics().prefetches_skipped == {reason: 1}
    assert engine.prefetches == []


async def test_a_session_from_which_nothing_is_evicted_is_left_alone_until_something_is():
    engine = Engine()
    async with after_first_turn(engine, 12.0) as agent:
        for _ in range(6):
            await agent.step()
        assert len(engine.prefetches) == 2
        assert agent.hints.statistics().prefetches_skipped == {"nothing is evicted": 4}
        await agent.step(meanwhile=engine.cache.clear)  # found lost
        await agent.step(meanwhile=engine.cache.clear)
    assert len(engine.prefetches) == 3
    assert agent.ttfts[-1] < 1 < agent.ttfts[-2]


async def test_without_evictions_auto_switches_itself_off_and_turns_cost_what_they_cost_without_hints():
    engine = Engine()
    async with opened(engine, mode="off") as hints:
        agent = Agent(engine, hints)
        await agent.turn()
        reference = await agent.step()
    async with opened(engine, mode="auto") as hints:
        tools_take(hints, 12.0)
        for number in range(12):
            agent = Agent(engine, hints, f"auto-{number}")
            await agent.turn()
            assert await agent.step() <= 1.05 * reference
        statistics = hints.statistics()
    assert statistics.prefetches_sent == 4
    assert statistics.disabled == {URL: "no measured gain"}
    assert statistics.prefetches_skipped == {"left out for comparison": 4, "no measured gain": 4}


async def test_auto_stays_on_where_the_cache_evicts():
    engine = Engine()
    async with opened(engine, mode="auto") as hints:
        tools_take(hints, 12.0)
        for number in range(16):
            agent = Agent(engine, hints, f"auto-{number}")
            await agent.turn()
            await agent.step(meanwhile=engine.cache.clear)
        statistics = hints.statistics()
    assert statistics.disabled == {}
    assert statistics.prefetches_sent == 11
    assert statistics.gains[URL].ttft_ratio < 0.1


async def test_a_rewritten_history_is_neither_prefetched_nor_taken_for_an_eviction():
    engine = Engine()
    async with after_first_turn(engine, 12.0, mode="auto") as agent:
        await agent.wait(12.0, meanwhile=lambda: agent.hints.signal(HistoryRewritten(agent.name, kept_messages=1)))
        agent.messages[1] = {"role": "user", "content": "rewritten"}
        await agent.turn(resumed=True)
        statistics = agent.hints.statistics()
    assert engine.prefetches == []
    assert statistics.gains[URL].holdout == 0


async def test_a_template_that_rewrites_history_gets_no_prefetch():
    def forgets_thoughts(body):
        last = body["messages"][-1]
        kept = [m for m in body["messages"] if m is last or m.get("role") != "assistant"]
        return render({**body, "messages": kept})

    engine = Engine(renders=forgets_thoughts)
    async with after_first_turn(engine, 12.0) as agent:
        await agent.step()
        statistics = agent.hints.statistics()
    assert engine.prefetches == []
    assert statistics.prefetches_skipped == {"template rewrites history": 1}
    assert statistics.disabled == {URL: "the chat template rewrites history"}


async def test_where_the_template_cannot_be_asked_what_the_turns_find_decides():
    def numbers_its_requests(body):
        counter["n"] += 1
        return f"request {counter['n']} " + render(body)

    counter = {"n": 0}
    engine = Engine(renders=numbers_its_requests, pages={"/tokenize": {}, "/version": {"version": "0.32.0"}})
    async with after_first_turn(engine, 12.0) as agent:
        for _ in range(6):
            await agent.step()
        statistics = agent.hints.statistics()
    assert statistics.prefetches_sent == 1 + 3  # a first turn is another kind of prompt than the later ones
    assert statistics.disabled == {URL: "the chat template rewrites history"}


async def test_a_server_that_breaks_costs_the_agent_nothing_and_is_left_alone_for_a_while():
    def breaks(path, body):
        return (500, {"error": "boom"}) if body.get("max_tokens") == 1 else None

    engine = Engine(refuse=breaks)
    async with opened(engine) as hints:
        tools_take(hints, 12.0)
        for number in range(5):
            agent = Agent(engine, hints, f"task-{number}")
            await agent.turn()
            hints.signal(ToolWaitStarted(agent.name, (("s", "tool0"),)))
        await anyio.sleep(11.0)
        statistics = hints.statistics()
        assert statistics.prefetches_failed >= 3
        assert statistics.disabled == {URL: "endpoint refuses"}
        late = Agent(engine, hints, "late")
        await late.turn()
        assert await late.step() < 1
        assert hints.statistics().prefetches_failed == statistics.prefetches_failed


async def test_a_server_that_does_not_say_what_it_is_costs_no_more_than_the_budget():
    async def silent(request):
        await anyio.sleep(3600)

    from toolhub_agent.kv_hints.hinter import open_hints

    from toolhub.config.llm import HintSettings

    engine = Engine()
    async with httpx2_client(silent) as http:
        async with open_hints(HintSettings(mode="on"), engine="auto", http=lambda _url: http) as hints:
            agent = Agent(engine, hints)
            await agent.turn()
            began = anyio.current_time()
            agent.hints.signal(ToolWaitStarted(agent.name, (("s", "tool0"),)))
            await anyio.sleep(2)
            assert hints.statistics().hints_failed == 1
            assert anyio.current_time() - began == pytest.approx(2)
        assert anyio.current_time() - began < 2 + 2 * 1.5 + 0.1


def httpx2_client(handler):
    import httpx2

    return httpx2.AsyncClient(transport=httpx2.MockTransport(handler))


async def test_leaving_while_a_prefetch_runs_ends_it():
    engine = Engine()
    with anyio.fail_after(100):
        async with opened(engine) as hints:
            tools_take(hints, 12.0)
            agent = Agent(engine, hints)
            await agent.turn()
            engine.cache.clear()
            hints.signal(ToolWaitStarted(agent.name, (("s", "tool0"),)))
            await anyio.sleep(7)
            assert engine.running == 1
        assert engine.running == 0


async def test_signals_after_the_end_and_of_unknown_sessions_do_nothing():
    engine = Engine()
    async with opened(engine) as hints:
        agent = Agent(engine, hints)
        hints.signal(ToolResultReady("nobody", "s", "t", 3.0, 0))
        assert list(hints.durations.own("s", "t")) == [3.0]
    await agent.turn()
    assert hints.statistics().sessions == 0
    assert engine.asked("/tokenize") == []


async def test_tokens_of_prefetches_are_counted_apart_from_the_conversations():
    engine = Engine()
    async with after_first_turn(engine, 12.0) as agent:
        await agent.step(meanwhile=engine.cache.clear)
        assert agent.hints.statistics().prefetched_tokens > 6000
    assert len(agent.usages) == 2


async def test_what_the_predictor_says_of_a_prefill_is_learned_from_turns_and_prefetches():
    engine = Engine()
    async with after_first_turn(engine, 12.0) as agent:
        for _ in range(4):
            await agent.step(meanwhile=engine.cache.clear)
        predicted = agent.hints._context.endpoints[URL].cost.seconds(4000)
    assert predicted == pytest.approx(OVERHEAD_S + 4000 * PER_TOKEN_S, rel=0.1)


async def test_the_blocks_own_error_comes_out_as_it_is():
    with pytest.raises(KeyError):
        async with opened(Engine()) as hints:
            await Agent(hints=hints, engine=Engine()).turn()
            raise KeyError("mine")
