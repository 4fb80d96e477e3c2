"""What of each prompt was reusable, and what broke it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from toolhub_agent.history import ToolResultTrimmer
from toolhub_agent.prefix_report import PrefixReport
from toolhub_agent.types import Message, Usage

from tests.toolhub_agent.conversation import after_turns, an_answer, an_outcome

pytestmark = pytest.mark.quick


def characters(messages: list[Message]) -> list[int]:
    """A template that is append-only, a character a token."""
    return [ord(letter) for message in messages for letter in f"<{message['role']}>{message['content']}</>"]


def forgetful(messages: list[Message]) -> list[int]:
    """A template that, like some of reasoning models, drops the thoughts of all answers but the last."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    shown = [
        message | {"content": "(thought) " * 20 + message["content"] if i == last else message["content"]}
        for i, message in enumerate(messages)
    ]
    return characters(shown)


def report_of(*prompts: list[Message], tokenizer=characters, cached=None, bodies=None) -> PrefixReport:
    report = PrefixReport(tokenizer)
    for turn, prompt in enumerate(prompts, 1):
        body = bodies[turn - 1] if bodies else {}
        count = len((tokenizer or characters)(prompt))
        report.add(turn, prompt, body, Usage(count, 5, cached[turn - 1] if cached else None))
    return report


def prompts(*turns: int, keep: int = -1) -> list[list[Message]]:
    view = ToolResultTrimmer(keep)
    return [view.view(after_turns(number, result="long " * 60).messages()).messages for number in turns]


def test_the_first_prompt_reuses_nothing_and_nothing_broke_it():
    (turn,) = report_of(*prompts(1)).turns
    assert (turn.reusable, turn.broken_at, turn.broken_by) == (0, None, None)


def test_a_prompt_that_is_continued_is_reusable_as_a_whole():
    first, second = prompts(1, 2)
    turn = report_of(first, second).turns[1]
    assert (turn.reusable, turn.broken_by) == (len(characters(first)), None)


@pytest.mark.parametrize(
    ("tokenizer", "off"), [(characters, len("<user>")), (None, 60)], ids=["exact", "estimated, of 770"]
)
def test_an_omitted_result_is_named_with_its_message(tokenizer, off):
    turn = report_of(*prompts(2, 3, keep=2), tokenizer=tokenizer).turns[1]
    assert (turn.broken_at, turn.broken_by) == (3, "tool result omitted")
    before_it = len(characters(after_turns(2).messages()[:3]))
    assert turn.reusable == pytest.approx(before_it, abs=off)


def test_another_system_prompt_breaks_everything():
    first, second = prompts(1, 2)
    second[0] = {"role": "system", "content": "Today is another day."}
    turn = report_of(first, second, tokenizer=None).turns[1]
    assert (turn.reusable, turn.broken_at, turn.broken_by) == (0, 0, "system prompt changed")


def test_other_tools_break_everything_and_sampling_breaks_nothing():
    first, second = prompts(1, 2)
    tools = [{"type": "function", "function": {"name": "web-search"}}]
    bodies = [
        {"tools": tools, "seed": 1},
        {"tools": tools, "seed": 2},
        {"tools": tools * 2},
        {"tools": tools * 2} | {"model": "x"},
    ]
    turns = report_of(first, second, second, second, bodies=bodies).turns
    assert [turn.broken_by for turn in turns] == [None, None, "tools changed", "request changed"]
    assert [turn.reusable for turn in turns[2:]] == [0, 0]


def test_the_order_of_a_tool_s_keys_counts_for_templates_print_it():
    first, second = prompts(1, 2)
    bodies = [{"tools": [{"a": 1, "b": 2}]}, {"tools": [{"b": 2, "a": 1}]}]
    assert report_of(first, second, bodies=bodies).turns[1].broken_by == "tools changed"


def test_messages_taken_away_and_messages_changed_are_told_apart():
    first, second = prompts(2, 1)
    changed = [*first[:-1], {"role": "user", "content": "Summarise."}]
    turns = report_of(first, second, changed[:4], changed).turns
    assert [(turn.broken_at, turn.broken_by) for turn in turns[1:]] == [
        (4, "messages removed"),
        (None, None),
        (None, None),
    ]
    other = report_of(first, changed).turns[1]
    assert (other.broken_at, other.broken_by) == (5, "message changed")


def test_a_template_that_renders_old_messages_anew_is_found_out_with_a_tokenizer():
    turn = report_of(*prompts(1, 2), tokenizer=forgetful).turns[1]
    assert (turn.broken_at, turn.broken_by) == (None, "template re-rendered")
    assert turn.reusable < len(forgetful(prompts(1)[0]))


def test_an_eviction_is_what_is_left_when_the_prompt_is_as_it_was():
    first, second = prompts(3, 4)
    size = len(characters(first))
    evicted = report_of(first, second, cached=[0, 0]).turns[1]
    assert evicted.broken_by == "evicted by the server"
    assert evicted.computed == evicted.prompt
    assert report_of(first, second, cached=[0, size - 128]).turns[1].broken_by is None
    guessed = report_of(first, second, cached=[0, 0], tokenizer=None).turns[1]
    assert guessed.broken_by == "evicted by the server or template re-rendered"


def test_a_server_that_does_not_count_cached_tokens_is_accused_of_nothing():
    turn = report_of(*prompts(3, 4)).turns[1]
    assert (turn.cached, turn.computed, turn.broken_by) == (None, None, None)


def test_a_turn_that_was_taken_back_breaks_nothing():
    history = after_turns(2)
    before = history.messages()
    history.append_assistant(an_answer("refused"))
    history.append_results([an_outcome("nothing")])
    history.pop_turn()
    assert report_of(before, history.messages()).turns[1].broken_by is None


def test_the_sums_as_json():
    first, second = prompts(1, 2)
    sizes = len(characters(first)), len(characters(second))
    report = report_of(first, second, cached=[0, 300])
    assert report.as_json()["total"] == {
        "prompt": sum(sizes),
        "reusable": sizes[0],
        "cached": 300,
        "computed": sum(sizes) - 300,
    }
    assert report.as_json()["turns"][0] == {
        "turn": 1,
        "prompt": sizes[0],
        "reusable": 0,
        "cached": 0,
        "computed": sizes[0],
        "broken_at": None,
        "broken_by": None,
    }


def test_the_table_shows_every_turn_the_sums_and_what_broke():
    report, out = report_of(*prompts(2, 3, keep=2)), io.StringIO()
    Console(file=out, width=120).print(report.table())
    shown = out.getvalue()
    assert "tool result omitted (message 3)" in shown
    assert f"{sum(turn.prompt for turn in report.turns):,}" in shown
    assert "-" in shown  # cached tokens: the server does not say
