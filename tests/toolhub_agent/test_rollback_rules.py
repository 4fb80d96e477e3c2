"""When a turn is taken back: wrong calls, empty searches, refusals, repeated queries."""

from __future__ import annotations

import json

import pytest
from toolhub_agent.turn import AskedQueries, Rollbacks, is_refusal, query_of, reason_to_retry
from toolhub_agent.types import ToolCall, ToolOutcome

pytestmark = pytest.mark.quick


def a_call(tool: str, **arguments: object) -> ToolCall:
    return ToolCall(0, "server", tool, arguments)


def an_outcome(text: str, tool: str = "google_search") -> ToolOutcome:
    return ToolOutcome(a_call(tool), text)


def test_four_turns_in_a_row_are_taken_back_and_the_fifth_stands():
    rollbacks = Rollbacks(5)
    for _ in range(4):
        assert rollbacks.is_allowed
        rollbacks.note_rollback()
    assert not rollbacks.is_allowed
    rollbacks.note_success()
    assert rollbacks.is_allowed and rollbacks.total == 4


@pytest.mark.parametrize("text", ["Unknown tool: nope", "Error executing tool search: boom\nmore"])
def test_a_wrong_call_is_worth_another_try_whatever_the_tool(text):
    assert reason_to_retry(an_outcome(text, "anything")) == text.splitlines()[0]


@pytest.mark.parametrize("found", [{"organic": []}, {"searchParameters": {"q": "x"}}])
def test_a_search_that_found_nothing_is_worth_another_try(found):
    assert reason_to_retry(an_outcome(json.dumps(found)))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"organic": [{"link": "a"}]}),
        json.dumps({"success": False, "error": "no key", "results": []}),
        json.dumps({"error": "quota"}),
        "[1]",
        "plain text",
    ],
)
def test_a_result_or_a_backend_s_error_is_kept(text):
    assert reason_to_retry(an_outcome(text)) is None


def test_an_empty_list_of_another_tool_is_kept():
    assert reason_to_retry(an_outcome(json.dumps({"organic": []}), "other")) is None


def test_refusals_are_recognised_by_their_words():
    assert is_refusal("Given the time constraint, I stop.")
    assert not is_refusal("The answer is 42.")


def test_a_query_is_a_duplicate_only_once_its_result_was_kept():
    asked, call = AskedQueries(), a_call("google_search", q="toolhub")
    assert call not in asked
    asked.note(call)
    assert call in asked and a_call("google_search", q="other") not in asked


@pytest.mark.parametrize("name", ["Query", "q"])
def test_both_spellings_of_a_sogou_query_are_read(name):
    asked = AskedQueries()
    asked.note(a_call("sogou_search", **{name: "one"}))
    assert a_call("sogou_search", **{name: "one"}) in asked
    assert a_call("sogou_search", **{name: "two"}) not in asked


def test_another_page_of_a_search_is_another_query():
    assert query_of(a_call("google_search", q="a", page=2)) != query_of(a_call("google_search", q="a"))


def test_tools_without_a_query_may_be_called_again():
    asked, call = AskedQueries(), a_call("run_python_code", code_block="1")
    asked.note(call)
    assert call not in asked
