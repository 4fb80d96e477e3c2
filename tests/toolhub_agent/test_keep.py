"""Which results stay in the prompt, and what strides save of the prefix cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.history import History, ToolResultTrimmer
from toolhub_agent.types import Message

from tests.toolhub_agent.conversation import after_turns, an_answer, an_outcome, contents, native_answer

pytestmark = pytest.mark.quick
GONE = "Tool result is omitted to save tokens."


def results(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] in ("user", "tool")][1:]


@pytest.mark.parametrize(("turns", "omitted"), [(0, 0), (2, 0), (3, 1), (9, 7)])
def test_exact_keep_k_shows_the_last_k_results_and_the_literal_for_the_others(turns, omitted):
    shown = results(ToolResultTrimmer(2).view(after_turns(turns).messages()).messages)
    assert shown == [GONE] * omitted + [f"result {number}" for number in range(omitted + 1, turns + 1)]


def test_the_system_prompt_the_task_and_every_answer_stay():
    messages = after_turns(5).messages()
    shown = ToolResultTrimmer(1).view(messages).messages
    kept = [place for place, message in enumerate(messages) if message["role"] != "user" or place == 1]
    assert [shown[place] for place in kept] == [messages[place] for place in kept]


def test_a_stride_grows_to_keep_plus_stride_and_is_then_cut_back_to_keep():
    keep = ToolResultTrimmer(2, trim_every=3)
    shown = [results(keep.view(after_turns(turns).messages()).messages) for turns in range(1, 11)]
    assert [len(one) - one.count(GONE) for one in shown] == [1, 2, 3, 4, 5, 2, 3, 4, 5, 2]


def test_k_counts_turns_also_where_a_turn_has_several_results():
    history = History("s", protocol="native")
    history.append_user("task")
    for number in range(3):
        history.append_assistant(native_answer("a", "b"))
        history.append_results([an_outcome(f"{number}{i}", index=i, id="ab"[i]) for i in range(2)])
    shown = ToolResultTrimmer(2).view(history.messages()).messages
    assert results(shown) == [GONE, GONE, "10", "11", "20", "21"]
    assert [message["tool_call_id"] for message in shown if message["role"] == "tool"] == ["a", "b"] * 3


def test_all_is_all():
    messages = after_turns(50).messages()
    assert ToolResultTrimmer(-1).view(messages).messages == messages


def test_keep_0_still_shows_a_result_once():
    assert results(ToolResultTrimmer(0).view(after_turns(2).messages()).messages) == [GONE, "result 2"]


def test_the_history_is_not_changed():
    history = after_turns(4)
    before = contents(history.messages())
    ToolResultTrimmer(1).view(history.messages())
    assert contents(history.messages()) == before


def test_a_view_tells_how_much_of_the_one_before_it_continues():
    keep, history = ToolResultTrimmer(1), after_turns(1)
    first = keep.view(history.messages())
    assert (first.kept, first.is_rewritten) == (0, False)
    history.append_assistant(an_answer("turn 2"))
    grown = keep.view(history.messages())
    assert (grown.kept, grown.is_rewritten) == (4, False)
    history.append_results([an_outcome("result 2")])
    cut = keep.view(history.messages())
    assert (cut.kept, cut.is_rewritten) == (3, True)  # system, task, turn 1; the result after it is gone


def test_asking_for_a_summary_after_the_last_results_keeps_the_prefix():
    keep, history = ToolResultTrimmer(2), after_turns(5)
    before = keep.view(history.messages())
    history.pop_results()
    history.append_user("Summarise.")
    asked = keep.view(history.messages())
    assert asked.kept == len(before.messages) - 1
    assert asked.messages[-1]["content"] == "Summarise."


def test_a_resumed_task_is_shown_the_same_prompt():
    keep = ToolResultTrimmer(3, trim_every=4)
    for turns in range(20):
        history = after_turns(turns)
        assert (
            keep.view(history.messages()).messages
            == ToolResultTrimmer(3, trim_every=4).view(history.messages()).messages
        )


@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 40))
def test_between_keep_and_keep_plus_stride_results_are_shown(keep, stride, turns):
    shown = results(ToolResultTrimmer(keep, stride).view(after_turns(turns).messages()).messages)
    visible = len(shown) - shown.count(GONE)
    assert visible == turns if turns <= keep else keep <= visible <= keep + stride
    assert shown == [GONE] * (turns - visible) + shown[turns - visible :]


def tokens(messages: list[Message]) -> list[int]:
    """A character a token: what is counted is the same whatever the vocabulary."""
    return [ord(letter) for message in messages for letter in f"{message['role']}:{message['content']}\n"]


def computed(keep: ToolResultTrimmer, turns: int) -> tuple[int, list[bool]]:
    """Tokens a prefix cache has to compute, and at which turns the prompt before was continued."""
    total, continued, last = 0, [], []
    for turn in range(1, turns + 1):
        now = tokens(keep.view(after_turns(turn, result="long " * 80).messages()).messages)
        same = next((i for i, (a, b) in enumerate(zip(last, now, strict=False)) if a != b), min(len(last), len(now)))
        total += len(now) - same
        continued.append(same == len(last))
        last = now
    return total, continued


def test_strides_keep_the_prefix_in_all_turns_but_one_of_each_stride():
    _, continued = computed(ToolResultTrimmer(5, trim_every=5), 29)
    cuts = [turn for turn, is_continued in enumerate(continued, 1) if not is_continued]
    assert cuts == [11, 17, 23, 29]
    _, exact = computed(ToolResultTrimmer(5), 29)
    assert [turn for turn, is_continued in enumerate(exact, 1) if not is_continued] == list(range(6, 30))


def test_strides_compute_less_than_half_of_what_exact_keep_k_does():
    exact, _ = computed(ToolResultTrimmer(5), 40)
    strides, _ = computed(ToolResultTrimmer(5, trim_every=5), 40)
    everything, _ = computed(ToolResultTrimmer(-1), 40)
    assert everything < strides < exact / 2


@pytest.mark.parametrize(("keep", "stride"), [(-2, 0), (1, -1)])
def test_nonsense_is_refused(keep, stride):
    with pytest.raises(ValueError, match="at least"):
        ToolResultTrimmer(keep, stride)
