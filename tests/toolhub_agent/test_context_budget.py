"""Whether a turn still leaves room for an answer, without knowing the model's vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.history import ContextBudget, encoded
from toolhub_agent.types import Usage

from tests.toolhub_agent.conversation import after_turns

pytestmark = pytest.mark.quick


def a_budget(limit: int = 10_000, answer: int = 500) -> ContextBudget:
    return ContextBudget(max_context_tokens=limit, max_answer_tokens=answer)


def size(messages) -> int:
    return sum(len(encoded(message)) for message in messages)


def test_needed_is_what_was_counted_plus_the_new_texts_with_a_margin_plus_an_answer_and_a_reserve():
    budget, prompt = a_budget(answer=500), after_turns(30).messages()
    budget.note(prompt, Usage(prompt_tokens=size(prompt) // 4, completion_tokens=70))
    per_token = size(prompt) / (size(prompt) // 4)
    new = [{"role": "user", "content": "x" * 400}]
    expected = size(prompt) // 4 + 70 + 1.5 * (400 / per_token + 40 / per_token) + 500 + 1000
    assert budget.needed(new, "s" * 40) == pytest.approx(expected, abs=3)


def test_the_loop_goes_on_below_the_limit_and_not_at_it():
    history = after_turns(3).messages()
    budget = a_budget(100_000)
    budget.note(history[:-1], Usage(5000, 100))
    needed = budget.needed(history[-1:], "summary")
    for limit, fits in [(needed + 1, True), (needed, False)]:
        other = a_budget(limit)
        other.note(history[:-1], Usage(5000, 100))
        assert other.fits(history, "summary") is fits


def test_all_results_of_a_native_turn_count():
    budget = a_budget(limit=7800)  # the second result alone would need 7500
    one = [{"role": "assistant", "content": ""}, {"role": "tool", "tool_call_id": "a", "content": "x" * 900}]
    two = [*one, {"role": "tool", "tool_call_id": "b", "content": "x" * 12_000}]
    assert budget.fits(one, "")
    assert not budget.fits(two, "")


def test_the_conversation_s_own_text_calibrates_the_estimate():
    budget, prompt = a_budget(), after_turns(50).messages()
    assert budget.estimate("x" * 300) == 100  # the first guess
    budget.note(prompt, Usage(prompt_tokens=size(prompt) // 2))
    assert budget.estimate("x" * 300) == pytest.approx(150, abs=1)


def test_text_that_takes_more_tokens_than_the_rest_raises_the_estimate_at_once():
    budget, history = a_budget(), after_turns(50)
    budget.note(history.messages(), Usage(size(history.messages()) // 4))
    counted = size(history.messages()) // 4
    before = budget.bytes_per_token
    history.append_user("0x1f " * 1000)
    budget.note(history.messages(), Usage(counted + 4000))
    assert budget.bytes_per_token == pytest.approx(5000 / 4000, rel=0.05)
    assert budget.bytes_per_token < before


def test_a_server_that_does_not_count_is_estimated():
    budget, prompt = a_budget(), after_turns(100, result="long " * 20).messages()
    budget.note(prompt, Usage())
    assert budget.needed([], "") >= size(prompt) // 3


@given(st.text(max_size=300), st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_count_of_a_server_makes_the_estimate_nonsense(text, first, second):
    budget, prompt = a_budget(), after_turns(2).messages()
    budget.note(prompt, Usage(first))
    budget.note([*prompt, {"role": "user", "content": text * 10}], Usage(second))
    size_of_text = len(text.encode("utf-8", "replace"))
    assert size_of_text / 8 <= budget.estimate(text) <= size_of_text
