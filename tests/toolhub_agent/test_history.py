"""The history is append-only, and its messages are the sentences that models were trained on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.history import History, dumps, encoded
from toolhub_agent.types import ToolOutcome

from tests.toolhub_agent.conversation import a_call, after_turns, an_answer, an_outcome, contents, native_answer

pytestmark = pytest.mark.quick


def test_all_results_of_a_turn_are_one_user_message_in_the_order_of_its_calls():
    history = History("s")
    history.append_results([an_outcome("second", index=1), an_outcome("first", index=0)])
    assert history.messages()[1:] == [{"role": "user", "content": "first\nsecond"}]


def test_native_results_are_one_message_per_call_with_its_id():
    history = History("s", protocol="native")
    history.append_assistant(native_answer("a", "b"))
    history.append_results([an_outcome("2", index=1, id="b"), an_outcome("1", index=0, id="a")])
    assert history.messages()[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (an_outcome("boom", is_error=True), "Tool call to search on web failed. Error: boom"),
        (an_outcome(""), "Tool call to search on web completed, but produced no specific output or result."),
        (an_outcome("x" * 100_000), "x" * 100_000),
        (an_outcome("x" * 100_001), "x" * 100_000 + "\n... [Result truncated]"),
    ],
    ids=["error", "nothing", "longest", "too long"],
)
def test_a_result_is_put_in_miroflow_s_words(outcome, text):
    history = History("s")
    history.append_results([outcome])
    assert contents(history.messages())[1] == text


def test_an_error_is_cut_too():
    history = History("s", result_chars=10)
    history.append_results([an_outcome("e" * 11, is_error=True)])
    assert contents(history.messages())[1].endswith("Error: " + "e" * 10 + "\n... [Result truncated]")


def test_half_a_surrogate_pair_in_a_result_does_not_reach_the_server():
    history = History("s")
    history.append_results([an_outcome("a\ud83db")])
    assert contents(history.messages())[1].encode("utf-8") == b"a?b"


def test_thoughts_that_came_apart_from_the_text_stay_with_their_answer():
    history = History("s")
    history.append_assistant(an_answer("text", reasoning="because"))
    history.append_assistant(an_answer("text"))
    assert history.messages()[1:] == [
        {"role": "assistant", "content": "text", "reasoning_content": "because"},
        {"role": "assistant", "content": "text"},
    ]


def test_a_rollback_takes_the_last_answer_and_its_results_and_nothing_else():
    history = after_turns(2)
    before = after_turns(1).messages()
    assert contents(history.pop_turn()) == ["turn 2", "result 2"]
    assert history.messages() == before
    assert history.turns == 1


def test_a_rollback_without_an_answer_takes_nothing():
    history = after_turns(0)
    assert history.pop_turn() == []
    assert contents(history.messages()) == ["You search.", "task"]


def test_the_request_for_a_summary_takes_the_place_of_the_last_results_but_never_of_the_task():
    history = after_turns(1)
    assert contents(history.pop_results()) == ["result 1"]
    assert history.pop_results() == []
    fresh = after_turns(0)
    assert fresh.pop_results() == []


def test_results_can_be_shown_ahead_without_appending_them():
    history = after_turns(1)
    ahead = history.results_of([an_outcome("early")])
    assert len(history) == len(after_turns(1))
    assert contents(ahead) == ["early"]


class Told:
    def __init__(self) -> None:
        self.changes: list[object] = []

    def appended(self, messages) -> None:
        self.changes.append(contents(messages))

    def popped(self, count: int) -> None:
        self.changes.append(count)


def test_the_journal_is_told_of_every_change_but_not_of_what_was_restored():
    told = Told()
    history = History("s", journal=told, restored=after_turns(1).messages()[1:])
    history.append_assistant(an_answer("more"))
    history.append_results([])
    history.pop_turn()
    history.pop_results()
    history.pop_turn()
    assert told.changes == [["more"], 1, 1, 1]
    assert contents(history.messages()) == ["s", "task"]


def test_json_keeps_the_order_of_keys_and_takes_whatever_a_log_gets(tmp_path):
    assert dumps({"b": 1, "a": [True, None]}) == '{"b":1,"a":[true,null]}'
    assert dumps({"path": tmp_path}) == f'{{"path":"{tmp_path}"}}'
    assert encoded("\ud83d") == b'"\\ud83d"'


texts = st.text(max_size=20)
outcomes = st.lists(st.builds(ToolOutcome, st.just(a_call()), texts, st.booleans()), min_size=1, max_size=3)
steps = st.lists(st.one_of(st.builds(an_answer, texts), outcomes, texts), max_size=12)


@given(steps)
def test_without_a_rollback_every_prompt_continues_the_bytes_of_the_one_before(steps):
    history = History("system")
    before = b""
    for step in steps:
        if isinstance(step, str):
            history.append_user(step)
        elif isinstance(step, list):
            history.append_results(step)
        else:
            history.append_assistant(step)
        now = b"".join(encoded(message) for message in history.messages())
        assert now.startswith(before)
        assert len(now) > len(before)
        before = now
