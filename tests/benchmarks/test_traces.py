"""Made-up tasks have the shape their module says, and prompts reuse what a keep-K view leaves alone."""

from __future__ import annotations

import math
from collections import Counter
from statistics import mean, median, pstdev

import pytest
from toolhub_agent.history import ToolResultTrimmer

from benchmarks.model.traces import (
    CALLS_PER_TURN,
    DECODE_TOKENS,
    OMITTED_TOKENS,
    TOOLS,
    TURNS,
    TaskTrace,
    TraceCall,
    TraceTurn,
    longest,
    make_task,
    make_tasks,
    prompts,
)


@pytest.fixture(scope="module")
def crowd() -> list[TaskTrace]:
    return make_tasks(60)


def small(turns: int) -> TaskTrace:
    """Answers of 10 tokens, results of 100, after a head of 1000."""
    call = (TraceCall("search", 1.0, 100),)
    return TaskTrace(
        0, tuple(TraceTurn(100 if at else 1000, 10, call if at < turns - 1 else ()) for at in range(turns))
    )


def test_the_same_seed_gives_the_same_task_and_another_another() -> None:
    assert make_task(7) == make_task(7)
    assert make_task(7) != make_task(8)
    assert make_tasks(2, seed=7) == [make_task(7), make_task(8)]


def test_a_task_has_some_300_turns_and_346_calls(crowd: list[TaskTrace]) -> None:
    assert mean(len(task.turns) for task in crowd) == pytest.approx(TURNS.mean, rel=0.05)
    assert mean(len(task.calls) for task in crowd) == pytest.approx(346, rel=0.05)
    assert [task.turns[-1].calls for task in crowd] == [()] * 60


def test_calls_per_turn_have_the_shares_they_should(crowd: list[TaskTrace]) -> None:
    counted = Counter(len(turn.calls) for task in crowd for turn in task.turns[:-1])
    assert {calls: count / counted.total() for calls, count in counted.items()} == pytest.approx(
        dict(CALLS_PER_TURN), abs=0.01
    )


@pytest.mark.parametrize("kind", TOOLS)
def test_each_tool_has_its_share_seconds_tokens_and_errors(crowd: list[TaskTrace], kind: str) -> None:
    tool = TOOLS[kind]
    calls = [call for task in crowd for call in task.calls]
    own = [call for call in calls if call.kind == kind]
    assert len(own) / len(calls) == pytest.approx(tool.share, abs=0.02)
    logs = [math.log(call.seconds) for call in own]
    assert math.exp(mean(logs)) == pytest.approx(tool.seconds.median, rel=0.06)
    assert pstdev(logs) == pytest.approx(tool.seconds.sigma, rel=0.06)
    assert median(call.result_tokens for call in own if not call.is_error) == pytest.approx(
        tool.result_tokens.median, rel=0.08
    )
    assert mean(call.is_error for call in own) == pytest.approx(tool.failing, abs=0.01)


def test_answers_have_the_length_they_should(crowd: list[TaskTrace]) -> None:
    assert mean(turn.decode for task in crowd for turn in task.turns) == pytest.approx(DECODE_TOKENS.mean, rel=0.03)


def test_contexts_grow_to_between_10_and_60_thousand_tokens(crowd: list[TaskTrace]) -> None:
    ends = [longest(prompts(task)) for task in crowd]
    assert 10_000 < min(ends) < max(ends) < 60_000


def test_a_scaled_task_has_a_context_of_that_scale_with_the_same_mix(crowd: list[TaskTrace]) -> None:
    scaled = make_tasks(60, scale=0.1)
    ratio = mean(longest(prompts(task, -1)) for task in scaled) / mean(longest(prompts(task, -1)) for task in crowd)
    assert ratio == pytest.approx(0.1, rel=0.15)
    shares = Counter(call.kind for task in scaled for call in task.calls)
    assert {kind: count / shares.total() for kind, count in shares.items()} == pytest.approx(
        {kind: tool.share for kind, tool in TOOLS.items()}, abs=0.03
    )
    for scale in (0.0, 1.5):
        with pytest.raises(ValueError, match="scale"):
            make_task(0, scale)


def test_a_new_turn_appends_what_it_says(crowd: list[TaskTrace]) -> None:
    task = crowd[0]
    assert [turn.new_tokens - sum(call.result_tokens for call in before.calls) for before, turn in pairs(task)] == (
        [8] * (len(task.turns) - 1)
    )


def pairs(task: TaskTrace) -> list[tuple[TraceTurn, TraceTurn]]:
    return list(zip(task.turns, task.turns[1:], strict=False))


def test_prompts_that_show_all_are_continued() -> None:
    found = prompts(small(8), keep=-1)
    assert [each.tokens for each in found] == [1000 + 110 * turn for turn in range(8)]
    assert [each.reusable for each in found[1:]] == [each.tokens + 10 for each in found[:-1]]


@pytest.mark.parametrize("stride", [0, 2, 5])
def test_prompts_are_cut_as_the_agent_cuts_them(stride: int) -> None:
    task, keep = small(20), 3
    view = ToolResultTrimmer(keep, stride)
    messages: list[dict[str, str]] = [{"role": "user", "content": "task"}]
    for number, prompt in enumerate(prompts(task, keep, stride)):
        shown = view.view(messages)
        sizes = [
            1000 if at == 0 else 10 if message["role"] == "assistant" else 100 if message["content"] == "r" else None
            for at, message in enumerate(shown.messages)
        ]
        tokens = [OMITTED_TOKENS if size is None else size for size in sizes]
        assert prompt.tokens == sum(tokens)
        if number:
            answered = 10 if not shown.is_rewritten else 0
            assert prompt.reusable == sum(tokens[: shown.kept]) + answered
        messages += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]


@pytest.mark.parametrize(("keep", "stride", "share"), [(-1, 0, 0.05), (5, 0, 0.41), (5, 5, 0.16), (5, 10, 0.11)])
def test_the_share_to_compute_is_near_what_vllm_computed(keep: int, stride: int, share: float) -> None:
    """Measured on vLLM 0.32: 40 turns, 17,487 tokens if all is shown, answers that the engine had not written."""
    turns = [TraceTurn(330 if at else 1500, 80, ()) for at in range(40)]
    found = prompts(TaskTrace(0, tuple(turns)), keep, stride)
    reused = sum(min(each.reusable, before.tokens) for before, each in zip(found, found[1:], strict=False))
    assert 1 - reused / sum(each.tokens for each in found) == pytest.approx(share, abs=0.035)


def test_impossible_views_are_refused() -> None:
    for keep, stride in ((0, 0), (-2, 0), (5, -1)):
        with pytest.raises(ValueError, match="keep"):
            prompts(small(3), keep, stride)


def test_turns_and_tools_can_be_chosen_without_changing_the_rest() -> None:
    full, chosen = make_task(5, 0.25), make_task(5, 0.25, turns=6)
    assert len(chosen.turns) == 6
    assert chosen.turns[0] == full.turns[0]
    halved = chosen.with_tools(0.5)
    assert [call.seconds for call in halved.calls] == [0.5 * call.seconds for call in chosen.calls]
    assert [turn.decode for turn in halved.turns] == [turn.decode for turn in chosen.turns]
