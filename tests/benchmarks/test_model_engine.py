"""The modelled engine keeps its books: no block is lost, caches save prefill, pins hold, costs can be found again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple, replace

import pytest

from benchmarks.model.cache import BLOCK, BlockCache
from benchmarks.model.costs import EngineCosts, Sample, calibrate
from benchmarks.model.engine import Clock, Engine, EngineRequest
from benchmarks.model.play import MIROFLOW, TOOLHUB, Played, RuntimePolicy, Site, play
from benchmarks.model.traces import TaskTrace, TraceCall, TraceTurn, make_tasks

COSTS = EngineCosts()
TIGHT = Site(engines=2, blocks=330, max_sequences=4, budget=512, cores=1)
EVERYTHING = replace(TOOLHUB, name="everything", warms_evicted=True, pin_s=5.0)
ADMITTED = replace(TOOLHUB, name="admitted", has_admission=True)


def engine(blocks: int = 100, **more: int) -> Engine:
    return Engine(Clock(), COSTS, blocks=blocks, **more)


def ask(
    one: Engine, name: str, prompt: int, *, reusable: int = 0, decode: int = 1, pin_s: float = 0.0
) -> EngineRequest:
    """A request that has the engine to itself."""
    request = one.request(name, prompt, reusable=reusable, decode=decode, pin_s=pin_s)
    one.clock.run()
    return request


# --- the cache --------------------------------------------------------------------------------------------------------


def test_the_oldest_conversation_loses_its_end_first() -> None:
    cache = BlockCache(10)
    for name in ("old", "new"):
        cache.take(4)
        cache.give(name, 4, 4)
    cache.take(5)
    assert (cache.idle_of("old"), cache.idle_of("new"), cache.evicted) == (1, 4, 3)


def test_more_blocks_than_there_are_cannot_be_taken() -> None:
    cache = BlockCache(4)
    with pytest.raises(ValueError, match="5 blocks"):
        cache.take(5)


def test_a_conversation_that_was_used_again_is_the_newest() -> None:
    one = engine(blocks=40)
    ask(one, "a", 160)
    ask(one, "b", 160)
    ask(one, "a", 161, reusable=160)
    ask(one, "c", 400)
    assert (one.cache.idle_of("a"), one.cache.idle_of("b")) == (10, 5)


def test_a_cached_beginning_costs_no_prefill() -> None:
    one = engine()
    ask(one, "a", 320, decode=17)
    again = ask(one, "a", 400, reusable=337)
    assert again.cached == 336
    assert one.statistics.prefilled == 320 + 400 - 336
    assert again.first - again.submitted == pytest.approx(COSTS.request_s(336, 64, 8192))


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    one = engine()
    ask(one, "a", 320)
    assert ask(one, "a", 320, reusable=320).cached == 304


def test_only_what_two_prompts_have_in_common_is_reused() -> None:
    one = engine()
    ask(one, "a", 320)
    assert ask(one, "a", 320, reusable=100).cached == 100 // BLOCK * BLOCK


def test_what_all_prompts_begin_with_is_computed_and_kept_once() -> None:
    one = engine(blocks=30, shared=160)
    first, second = ask(one, "a", 192), ask(one, "b", 192)
    assert (first.cached, second.cached, one.statistics.prefilled) == (0, 160, 192 + 32)
    assert (one.cache.used, one.cache.idle_of("a"), one.cache.idle_of("b")) == (10, 2, 2)
    ask(one, "large", 450)
    assert ask(one, "c", 192).cached == 160


def test_reuse_is_in_whole_blocks_of_the_engines_size() -> None:
    one = engine(block=128)
    ask(one, "a", 320)
    assert ask(one, "a", 400, reusable=320).cached == 256


def test_a_released_conversation_leaves_nothing() -> None:
    one = engine()
    ask(one, "a", 320)
    one.release("a")
    assert (one.cache.idle, one.cache.free) == (0, 100)


@pytest.mark.parametrize("seed", range(5))
def test_a_larger_cache_never_computes_more(seed: int) -> None:
    pick = random.Random(seed)
    known: dict[str, int] = {}
    asked = []
    for _ in range(200):
        name, decode = f"c{pick.randrange(6)}", pick.randint(1, 40)
        reusable = pick.choice([known.get(name, 0)] * 4 + [known.get(name, 0) // 2])
        prompt = min(reusable + pick.randint(1, 300), 1000)
        asked.append((name, prompt, min(reusable, prompt), decode))
        known[name] = prompt + decode
    computed = []
    for blocks in (70, 100, 150, 220, 400):
        one = engine(blocks)
        for name, prompt, reusable, decode in asked:
            ask(one, name, prompt, reusable=reusable, decode=decode)
        computed.append(one.statistics.prefilled)
    assert computed == sorted(computed, reverse=True)
    assert computed[0] > computed[-1]


# --- pins and prefill-ahead -------------------------------------------------------------------------------------------


def test_a_pinned_conversation_survives_pressure_until_its_pin_ends() -> None:
    one = engine(blocks=60)
    ask(one, "kept", 320, pin_s=1000.0)
    ask(one, "other", 320)
    ask(one, "more", 600)
    assert (one.cache.idle_of("kept"), one.cache.idle_of("other")) == (20, 2)
    one.clock.at(1001.0, lambda: None)
    one.clock.run()
    ask(one, "most", 900)
    assert one.cache.idle_of("kept") == 0
    assert one.cache.pins_yielded == 0


def test_a_pin_yields_to_a_request_that_would_never_fit() -> None:
    one = engine(blocks=60)
    ask(one, "kept", 320)
    one.pin("kept", 1000.0)
    assert ask(one, "large", 900).finished > 0
    assert one.cache.pins_yielded == 1


def test_a_prefill_ahead_makes_a_rewritten_prompt_a_cached_one() -> None:
    one = engine()
    ask(one, "a", 640)
    one.warm("a", 480, reusable=160)
    one.clock.run()
    assert ask(one, "a", 560, reusable=160).cached == 480
    assert one.statistics.warmed == 1


def test_a_prefill_ahead_that_is_late_is_dropped_and_what_it_computed_stays() -> None:
    one = engine(budget=160)
    late = one.warm("a", 640)
    wanted: list[EngineRequest] = []
    one.clock.at(COSTS.request_s(0, 160, 160) * 1.5, lambda: wanted.append(one.request("a", 700)))
    one.clock.run()
    assert (late.is_dropped, wanted[0].cached) == (True, 320)
    assert one.statistics.dropped == 1


def test_a_conversation_has_one_turn_at_a_time_and_no_prompt_beyond_the_cache() -> None:
    one = engine()
    one.request("a", 100, decode=10)
    with pytest.raises(ValueError, match="under way"):
        one.request("a", 100)
    with pytest.raises(ValueError, match="do not fit"):
        one.request("b", 1600)


# --- steps ------------------------------------------------------------------------------------------------------------


def test_a_request_alone_takes_what_the_costs_say() -> None:
    for prompt, decode in ((100, 1), (700, 30), (1300, 2)):
        one = engine(blocks=400, budget=512)
        request = ask(one, "a", prompt, decode=decode)
        assert request.finished == pytest.approx(Sample(prompt, 0, decode, 1, 1.0).predicted_s(COSTS, 512))


@pytest.mark.parametrize(("prompt", "decode", "batch"), [(100, 1, 4), (300, 30, 4), (700, 30, 3), (1300, 1, 2)])
def test_requests_at_once_take_what_a_sample_counts(prompt: int, decode: int, batch: int) -> None:
    one = engine(blocks=1000, budget=512)
    asked = [one.request(f"{number}", prompt, decode=decode) for number in range(batch)]
    one.clock.run()
    expected = Sample(prompt, 0, decode, batch, 1.0).predicted_s(COSTS, 512)
    assert max(each.finished for each in asked) == pytest.approx(expected)


def test_who_comes_while_others_decode_waits_for_one_step_only() -> None:
    one = engine()
    one.request("a", 100, decode=500)
    later: list[EngineRequest] = []
    one.clock.at(1.0, lambda: later.append(one.request("b", 100)))
    one.clock.run()
    assert 0 <= later[0].admitted - 1.0 - COSTS.arrival_s <= COSTS.decode_s(1, 1, 600)


def test_no_more_sequences_run_than_there_are_seats() -> None:
    one = engine(max_sequences=1)
    first, second = one.request("a", 100, decode=50), one.request("b", 100)
    one.clock.run()
    assert second.admitted == first.finished


def test_without_blocks_the_latest_is_preempted_and_ends_all_the_same() -> None:
    one = engine(blocks=30)
    asked = [one.request(name, 160, decode=200) for name in "abc"]
    one.clock.run()
    assert one.statistics.preempted > 0
    assert [each.written for each in asked] == [200] * 3
    assert asked[0].finished < asked[2].finished
    assert (one.cache.used, one.cache.free + one.cache.idle) == (0, 30)


def test_whatever_comes_ends_and_no_block_is_lost() -> None:
    pick = random.Random(1)
    one = engine(blocks=120, max_sequences=5, budget=256)
    asked: list[EngineRequest] = []

    def come(name: str, turns: int) -> None:
        def again(before: EngineRequest) -> None:
            if turns > 1:
                if pick.random() < 0.5:
                    one.warm(name, before.prompt // 2, reusable=before.prompt // 3)
                one.clock.at(one.clock.now + pick.random(), lambda: come(name, turns - 1))

        prompt, decode = pick.randint(1, 900), pick.randint(1, 120)
        pin_s = pick.choice([0.0, 0.5])
        asked.append(one.request(name, prompt, reusable=prompt // 2, decode=decode, done=again, pin_s=pin_s))

    for number in range(12):
        come(f"c{number}", 8)
    one.clock.run()
    cache, did = one.cache, one.statistics
    assert [each.written for each in asked] == [each.decode for each in asked]
    assert (len(asked), did.finished + did.dropped) == (96, did.requests)
    assert (cache.used, cache.idle + cache.free, cache.free >= 0) == (0, 120, True)
    assert did.preempted > 0 and cache.evicted > 0


# --- calibration ------------------------------------------------------------------------------------------------------


def samples(costs: EngineCosts, noise: float = 0.0) -> list[Sample]:
    pick = random.Random(0)
    found = []
    for prefill in (200, 1000, 4000, 9000):
        for cached in (0, 3000):
            for decode in (1, 60):
                for batch in (1, 4):
                    seconds = Sample(prefill, cached, decode, batch, 1.0).predicted_s(costs, 2048)
                    found.append(Sample(prefill, cached, decode, batch, seconds * (1 + pick.uniform(-noise, noise))))
    return found


@pytest.mark.parametrize("costs", [COSTS, EngineCosts(0.02, 1e-4, 6e-8, 2e-3, 1e-6), EngineCosts(pair_s=0.0)])
def test_calibration_finds_the_costs_that_made_the_samples(costs: EngineCosts) -> None:
    found = calibrate(samples(costs))
    assert astuple(found.costs) == pytest.approx(astuple(costs), rel=1e-3, abs=1e-12)
    assert found.error < 1e-6


def test_calibration_of_noisy_samples_tells_its_error_and_no_cost_below_zero() -> None:
    found = calibrate(samples(COSTS, noise=0.2))
    assert 0.01 < found.error < 0.2
    assert min(astuple(found.costs)) >= 0
    assert "32 samples" in str(found)


def test_calibration_of_equal_samples_still_predicts_them() -> None:
    assert calibrate([Sample(1000, 0, 1, 1, 2.0)] * 3).error < 1e-9


def test_calibration_needs_samples() -> None:
    for none in ([], [Sample(1, 0, 1, 1, 0.0)]):
        with pytest.raises(ValueError, match="samples"):
            calibrate(none)


# --- crowds -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd() -> list[TaskTrace]:
    return make_tasks(8, scale=0.04)


@pytest.mark.parametrize("policy", [MIROFLOW, TOOLHUB, EVERYTHING, ADMITTED], ids=lambda policy: policy.name)
def test_a_task_s_seconds_are_those_of_model_tools_and_starts(crowd: list[TaskTrace], policy: RuntimePolicy) -> None:
    played = play(crowd, policy, TIGHT)
    for task, trace in zip(played.tasks, crowd, strict=True):
        assert task.wall_s == pytest.approx(task.llm_s + task.tools_s + task.start_s)
        assert len(task.ttft_s) == len(trace.turns) - 1
    did = played.engines
    assert did.finished - did.warmed == sum(len(trace.turns) for trace in crowd)
    assert did.decoded >= sum(turn.decode for trace in crowd for turn in trace.turns)


def test_the_same_crowd_gives_the_same_figures(crowd: list[TaskTrace]) -> None:
    assert play(crowd, EVERYTHING, TIGHT) == play(crowd, EVERYTHING, TIGHT)


def test_with_admission_a_crowd_computes_fewer_tokens_and_where_all_fit_nothing_changes(crowd: list[TaskTrace]) -> None:
    admitted, without = (play(crowd, policy, TIGHT) for policy in (ADMITTED, TOOLHUB))
    assert admitted.engines.prefilled < without.engines.prefilled
    assert (admitted.pauses > 0, without.pauses) == (True, 0)
    roomy = replace(TIGHT, blocks=100_000)
    assert play(crowd, ADMITTED, roomy).tasks == play(crowd, TOOLHUB, roomy).tasks


def one_turn(calls: Sequence[TraceCall], policy: RuntimePolicy, cores: int = 1) -> Played:
    return play(
        [TaskTrace(0, (TraceTurn(100, 50, tuple(calls)), TraceTurn(40, 5, ())))], policy, Site(engines=1, cores=cores)
    )


def test_calls_of_a_turn_run_one_after_another_or_at_once() -> None:
    calls = [TraceCall("search", 30.0, 16), TraceCall("scrape", 40.0, 16)]
    (theirs,), (ours,) = (one_turn(calls, replace(each, servers=0)).tasks for each in (MIROFLOW, TOOLHUB))
    assert theirs.tools_s == 70.0
    assert 2 * 0.33 <= theirs.start_s <= 2 * 0.9
    assert ours.start_s == pytest.approx(0.001)
    assert ours.tools_s == pytest.approx(40.0)


@pytest.mark.parametrize(("cores", "expected"), [(1, [3 + 1, 3]), (3, [3 + 1, 1])])
def test_a_task_first_starts_its_servers_side_by_side_if_it_keeps_them(cores: int, expected: list[float]) -> None:
    variants = [replace(each, start_cpu_s=(1.0, 1.0), call_s=0.0, servers=3) for each in (MIROFLOW, TOOLHUB)]
    starts = [one_turn([TraceCall("search", 30.0, 16)], each, cores).tasks[0].start_s for each in variants]
    assert starts == pytest.approx(expected)


def test_a_call_starts_when_it_is_written() -> None:
    calls = [TraceCall("scrape", 40.0, 16), TraceCall("search", 1.0, 16)]
    (task,) = one_turn(calls, replace(TOOLHUB, servers=0)).tasks
    assert task.tools_s + task.start_s == pytest.approx(40.001 - 0.2 * COSTS.decode_s(49, 1, 100), rel=1e-6)


def test_starts_of_many_wait_for_cores(crowd: list[TaskTrace]) -> None:
    few, many = (play(crowd, MIROFLOW, replace(TIGHT, cores=cores)) for cores in (1, 64))
    assert sum(task.start_s for task in few.tasks) > sum(task.start_s for task in many.tasks)


def test_a_prefill_ahead_of_cut_prompts_spares_the_wait_for_them(crowd: list[TaskTrace]) -> None:
    roomy = Site(engines=1, blocks=100_000)
    with_it, without = (
        play(crowd[:1], replace(TOOLHUB, stride=0, warms_rewritten=warms), roomy) for warms in (True, False)
    )
    assert (with_it.engines.warmed > 0, without.engines.warmed) == (True, 0)
    assert with_it.tasks[0].cached > without.tasks[0].cached
    assert with_it.tasks[0].prefill_s < without.tasks[0].prefill_s


def test_with_a_limit_an_engine_has_no_more_tasks_than_that_at_once(crowd: list[TaskTrace]) -> None:
    alone, limited = (play(tasks, replace(TOOLHUB, at_once=1), Site(engines=1)) for tasks in (crowd[:1], crowd))
    assert limited.tasks[0] == alone.tasks[0]
    assert limited.wall_s == pytest.approx(sum(task.wall_s for task in limited.tasks))
    assert limited.engines.finished - limited.engines.warmed == sum(len(trace.turns) for trace in crowd)


def test_a_summary_has_a_number_for_everything(crowd: list[TaskTrace]) -> None:
    summary = play(crowd, EVERYTHING, TIGHT).summary()
    assert None not in summary.values()
    assert 0 < summary["cached_share"] < 1
    assert summary["ttft_p50_s"] <= summary["ttft_p95_s"]
