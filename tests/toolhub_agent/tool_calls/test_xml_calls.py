"""Calls in XML, found in a stream that may be cut anywhere."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from toolhub_agent.tool_calls import xml_calls
from toolhub_agent.tool_calls.arguments import ParseEnd
from toolhub_agent.tool_calls.xml_calls import XmlCallReader
from toolhub_agent.types import ToolCall


def xml(server: str = "web", tool: str = "search", arguments: str = '{"q": "cats"}') -> str:
    return (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n"
        f"<arguments>\n{arguments}\n</arguments>\n</use_mcp_tool>"
    )


def ask(query: str) -> str:
    return xml(arguments=json.dumps({"q": query}))


@dataclass
class Read:
    """What a turn came to. standing: without the calls that were withdrawn later."""

    standing: list[ToolCall]
    end: ParseEnd


def read(*chunks: str) -> Read:
    reader = XmlCallReader()
    found = [call for chunk in chunks for call in reader.feed(chunk)]
    end = reader.close()
    withdrawn = set(reader.take_withdrawn())
    return Read([call for call in found if call.index not in withdrawn], end)


def queries(turn: Read) -> list[object]:
    return [call.arguments.get("q") for call in turn.standing]


def test_a_call_is_handed_out_by_the_very_character_that_closes_it():
    reader = XmlCallReader()
    text = "I will search.\n" + xml()
    assert [reader.feed(character) for character in text[:-1]] == [[]] * (len(text) - 1)
    assert reader.feed(text[-1]) == [ToolCall(0, "web", "search", {"q": "cats"}, raw='{"q": "cats"}')]
    assert reader.close() == ParseEnd()


def test_several_calls_of_a_turn_are_counted():
    turn = read(xml(arguments='{"q": 1}') + "\nand\n" + xml(arguments='{"q": 2}'))
    assert [(call.index, call.arguments) for call in turn.standing] == [(0, {"q": 1}), (1, {"q": 2})]


def test_calls_inside_thinking_are_none():
    turn = read(f"<think>I could {ask('no')}</think>\n{ask('yes')}")
    assert queries(turn) == ["yes"]
    assert turn.end == ParseEnd()


def test_after_a_think_that_is_never_closed_everything_is_thinking():
    turn = read(f"{ask('before')}<think>{ask('after')} <arguments>")
    assert queries(turn) == ["before"]
    assert turn.end == ParseEnd()


def test_a_closing_think_that_the_template_opened_withdraws_the_calls_before_it():
    reader = XmlCallReader()
    assert len(reader.feed(f"Maybe {xml()}, or `<arguments>`?")) == 1
    assert reader.feed(f"</think>Yes: {ask('dogs')}")[0].index == 1
    assert reader.take_withdrawn() == [0]
    assert reader.take_withdrawn() == []
    assert reader.close() == ParseEnd()


def test_a_second_closing_think_withdraws_nothing():
    assert queries(read(f"<think>a</think>{xml()}</think>")) == ["cats"]


def test_think_tags_inside_arguments_are_text():
    turn = read(xml(arguments='{"q": "what does <think> mean? </think> <arguments>"}'))
    assert queries(turn) == ["what does <think> mean? </think> <arguments>"]


def test_arguments_end_only_where_the_call_does():
    turn = read(xml(arguments='{"q": "</arguments> is a tag, </arguments> </arguments> too"}'))
    assert queries(turn) == ["</arguments> is a tag, </arguments> </arguments> too"]


def test_white_space_between_the_tags_means_nothing():
    text = (
        " <use_mcp_tool><server_name> web </server_name> \n\t<tool_name>\nsearch</tool_name><arguments>{}</arguments>"
    )
    assert [(call.server, call.tool) for call in read(text + " \n </use_mcp_tool>").standing] == [("web", "search")]


@pytest.mark.parametrize("arguments", ["5", "null", '"cats"', "[1]", "just cats"])
def test_arguments_that_are_no_object_make_a_call_with_a_problem(arguments):
    (call,) = read(xml(arguments=arguments)).standing
    assert call.arguments == {}
    assert call.problem is not None
    assert call.raw == arguments


def test_two_calls_run_into_one_are_not_repaired_into_a_call_nobody_made():
    first = xml(arguments='{"command": "ls"}').replace("</arguments>\n", "")
    (call,) = read(first + xml(arguments='{"command": "rm"}')).standing
    assert call.problem == "the call was not closed before the next one began"
    assert call.arguments == {}


@pytest.mark.parametrize(
    "tag",
    ["<use_mcp_tool>", "</use_mcp_tool>", "<server_name>", "</server_name>", "<arguments>", "</arguments>"],
)
def test_a_tag_without_any_call_is_a_format_error(tag):
    end = read(f"I will search now. {tag} cats").end
    assert end.format_error
    assert end.problem is not None


@pytest.mark.parametrize("text", ["No tag here, 1 < 2 and <b>bold</b>.", "<tool_name>", "<think><arguments></think>"])
def test_other_text_is_no_format_error(text):
    assert read(text).end == ParseEnd()


@pytest.mark.parametrize("cut", ["</use_mcp_tool>", "\n</arguments>\n</use_mcp_tool>", "</tool_name>"])
def test_a_call_that_is_cut_off_is_a_format_error(cut):
    text = xml()
    assert read(text[: text.index(cut)]).end.format_error


def test_a_call_cut_off_after_a_complete_one_is_a_problem_but_no_format_error():
    end = read(xml() + "\n<use_mcp_tool>\n<server_name>web").end
    assert end == ParseEnd(problem="a call's </use_mcp_tool> is missing", format_error=False)


def test_a_head_out_of_order_is_left_at_once_so_that_the_next_call_is_found():
    turn = read("Use <use_mcp_tool> like this: " + xml())
    assert queries(turn) == ["cats"]
    assert turn.end.problem == "<server_name> expected in a call"


def test_a_stray_tag_beside_a_complete_call_is_no_problem():
    assert read(xml() + "\n</use_mcp_tool> done").end == ParseEnd()


PIECES = st.sampled_from(
    [
        *sorted(xml_calls.TAGS),
        xml(),
        xml(arguments='{"q": "<think>"}'),
        xml(arguments="[1]"),
        "<think>hm</think>",
        " \n",
        "web",
        "<",
        "</",
        "</arguments",
        '{"q": 1}',
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(st.integers(0, 600), max_size=12))
@example("a " + xml() + "</think>" + xml(), [9])
def test_any_chunking_reads_the_same_as_the_whole(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]
    assert read(*chunks) == read(text) == read(*text)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1).map(str.strip).filter(bool)
QUERIES = st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3)


@given(st.lists(st.tuples(NAMES, NAMES, QUERIES), max_size=4))
def test_what_was_written_is_what_is_read(calls):
    text = "\n".join(xml(server, tool, json.dumps(arguments)) for server, tool, arguments in calls)
    assert [(call.server, call.tool, call.arguments) for call in read("Well.\n" + text).standing] == calls


class CountingPattern:
    """Stands where the pattern of tags does and counts the characters it is shown."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.characters = 0

    def finditer(self, text: str):
        self.characters += len(text)
        return self._pattern.finditer(text)


@pytest.mark.parametrize(
    "garbage",
    ["<", "</arguments> ", "<use_mcp_tool>", "<think", "<use_mcp_tool><server_name>x", "no tag at all ", " "],
)
@pytest.mark.parametrize("begin", ["", xml()[: -len("</use_mcp_tool>")], xml()[:60], "<think>"])
def test_half_a_megabyte_of_garbage_is_looked_at_once(garbage, begin, monkeypatch):
    counting = CountingPattern(xml_calls._TAG)
    monkeypatch.setattr(xml_calls, "_TAG", counting)
    reader = XmlCallReader()
    chunk = (garbage * 5000)[:5000]
    reader.feed(begin)
    for _ in range(100):
        reader.feed(chunk)
    reader.close()
    longest = max(map(len, xml_calls.TAGS))
    assert counting.characters <= len(begin) + 100 * (len(chunk) + longest)
