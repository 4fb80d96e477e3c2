"""Native tool calls, assembled from deltas of servers that all do it a little differently."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.tool_calls import native_calls
from toolhub_agent.tool_calls.native_calls import JsonObjectScanner, NativeCallReader
from toolhub_agent.types import Json, ToolCall


def split(function: str) -> tuple[str, str]:
    server, _, tool = function.rpartition("-")
    return server, tool


def delta(arguments: object = None, *, index: int | None = 0, id: str | None = None, name: str | None = None) -> Json:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def feed(reader: NativeCallReader, *deltas: Json) -> list[ToolCall]:
    return [call for one in deltas for call in reader.feed((one,))]


def found(calls: list[ToolCall] | tuple[ToolCall, ...]) -> list[tuple[int, str, Json]]:
    return [(call.index, call.tool, call.arguments) for call in calls]


def test_a_call_is_handed_out_when_its_object_closes_and_only_then():
    reader = NativeCallReader(split)
    text = '{"q": "a } \\" b", "n": {"m": [1]}}'
    begin = delta(id="c1", name="web-search")
    assert feed(reader, begin, *(delta(character) for character in text[:-1])) == []
    (call,) = feed(reader, delta(text[-1]))
    assert call == ToolCall(0, "web", "search", {"q": 'a } " b', "n": {"m": [1]}}, id="c1", raw=text)
    assert reader.close().calls == ()


def test_a_call_is_growing_until_another_begins():
    reader = NativeCallReader(split)
    assert reader.growing is None
    feed(reader, delta("{}", id="c1", name="web-search"))
    assert reader.growing == 0
    feed(reader, delta("", index=1, id="c2", name="web-read"))
    assert reader.growing is None


def test_more_text_after_the_object_withdraws_the_call_and_it_comes_again_at_the_end_as_a_problem():
    reader = NativeCallReader(split)
    assert len(feed(reader, delta('{"a": 1}', id="c1", name="web-search"), delta(" \n"))) == 1
    assert reader.take_withdrawn() == []
    assert feed(reader, delta('{"b": 2}')) == []
    assert reader.take_withdrawn() == [0]
    (call,) = reader.close().calls
    assert (call.index, call.arguments, call.id) == (0, {}, "c1")
    assert call.problem == "the arguments are not valid JSON (there is more than one object)"


def test_a_call_without_arguments_is_complete_at_the_end():
    reader = NativeCallReader(split)
    assert feed(reader, delta("", id="c1", name="clock-now")) == []
    assert found(reader.close().calls) == [(0, "now", {})]


def test_what_is_not_json_is_repaired_at_the_end():
    reader = NativeCallReader(split)
    assert feed(reader, delta("{'q': None, 'n': 1}", name="web-search")) == []
    assert found(reader.close().calls) == [(0, "search", {"n": 1})]


def test_arguments_that_were_cut_off_are_not_made_whole():
    reader = NativeCallReader(split)
    feed(reader, delta('{"command": "rm -rf /tmp', name="sh-run"))
    (call,) = reader.close().calls
    assert call.arguments == {}
    assert call.problem == "the arguments end before their object is closed"


def test_interleaved_calls_are_kept_apart():
    reader = NativeCallReader(split)
    feed(reader, delta('{"q":', id="a", name="web-search"), delta('{"u":', index=1, id="b", name="web-read"))
    assert found(feed(reader, delta("2}", index=1), delta("1}"))) == [(1, "read", {"u": 2}), (0, "search", {"q": 1})]


@pytest.mark.parametrize("index", [0, None])
def test_servers_that_do_not_number_their_calls_send_each_whole_and_with_an_id(index):
    reader = NativeCallReader(split)
    calls = feed(
        reader,
        delta('{"q": 1}', index=index, id="a", name="web-search"),
        delta('{"q": 2}', index=index, id="b", name="web-search"),
    )
    assert found(calls) == [(0, "search", {"q": 1}), (1, "search", {"q": 2})]


def test_without_index_and_id_text_belongs_to_the_call_that_is_being_written():
    reader = NativeCallReader(split)
    calls = feed(reader, delta('{"q"', index=None, id="a", name="web-search"), delta(": 1}", index=None))
    assert found(calls) == [(0, "search", {"q": 1})]


def test_an_id_that_changes_with_every_delta_makes_no_new_call():
    reader = NativeCallReader(split)
    calls = feed(
        reader, delta('{"q"', id="a", name="web-search"), delta(": 1", id="b", name="web-search"), delta("}", id="c")
    )
    assert found(calls) == [(0, "search", {"q": 1})]
    assert calls[0].id == "a"


def test_a_name_may_come_in_pieces_and_again():
    reader = NativeCallReader(split)
    calls = feed(reader, delta(name="web-"), delta(name="search"), delta("{", name="web-search"), delta("}"))
    assert found(calls) == [(0, "search", {})]


def test_arguments_may_be_an_object():
    assert found(feed(NativeCallReader(split), delta({"q": 1}, name="web-search"))) == [(0, "search", {"q": 1})]


def test_every_call_has_an_id_of_its_own():
    reader = NativeCallReader(split)
    calls = feed(
        reader,
        delta("{}", index=0, id="same", name="a-b"),
        delta("{}", index=1, id="same", name="a-b"),
        delta("{}", index=2, name="a-b"),
    )
    ids = [call.id for call in calls]
    assert ids[0] == "same"
    assert len(set(ids)) == 3
    assert None not in ids
    assert [call["id"] for call in reader.calls()] == ids


EVENT = {
    "choice_index": 0,
    "tool_call": {
        "index": 0,
        "id": "call-1",
        "type": "function",
        "function": {"name": "web-search", "arguments": '{"q": 1}'},
    },
}


@pytest.mark.parametrize("event", [EVENT, EVENT["tool_call"]])
def test_a_dispatched_call_is_complete_at_once_and_its_inline_repeat_is_not_another(event):
    reader = NativeCallReader(split)
    assert found(reader.dispatched(event)) == [(0, "search", {"q": 1})]
    assert reader.growing is None  # the server itself says that it is complete
    assert feed(reader, delta('{"q": 1}', id="call-1", name="web-search")) == []
    assert reader.dispatched(event) == []
    assert (reader.take_withdrawn(), reader.close().calls, len(reader.calls())) == ([], (), 1)


def test_a_dispatched_event_after_the_inline_call_only_seals_it():
    reader = NativeCallReader(split)
    assert len(feed(reader, delta('{"q": 1}', id="call-1", name="web-search"))) == 1
    assert reader.growing == 0
    assert reader.dispatched(EVENT) == []
    assert reader.growing is None


def test_a_dispatched_event_completes_what_came_inline_so_far():
    reader = NativeCallReader(split)
    feed(reader, delta('{"q"', id="call-1", name="web-search"))
    assert found(reader.dispatched(EVENT)) == [(0, "search", {"q": 1})]
    assert feed(reader, delta(": 1}")) == []
    assert reader.calls()[0]["function"]["arguments"] == '{"q": 1}'


def test_a_dispatched_call_of_another_choice_is_not_ours():
    assert NativeCallReader(split).dispatched({**EVENT, "choice_index": 1}) == []


def test_history_has_the_arguments_as_written():
    reader = NativeCallReader(split)
    text = '{ "q" :1,"empty":null}'
    feed(reader, delta(text, id="c1", name="web-search"))
    assert reader.calls() == ({"id": "c1", "type": "function", "function": {"name": "web-search", "arguments": text}},)


@pytest.mark.parametrize("text", ["", "[1]", "{'q': 1}", '{"q": "a\nb"}', '{"q": ', "nonsense"])
def test_history_never_has_arguments_that_a_chat_template_cannot_read(text):
    reader = NativeCallReader(split)
    feed(reader, delta(text, name="web-search"))
    reader.close()
    assert isinstance(json.loads(reader.calls()[0]["function"]["arguments"]), dict)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3), st.booleans(), st.integers(1, 7))
def test_the_scan_closes_exactly_where_the_object_does(value, ascii_only, size):
    text = "\n " + json.dumps(value, ensure_ascii=ascii_only)
    scan = JsonObjectScanner()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for piece in pieces[:-1]:
        scan.feed(piece)
        assert not scan.is_closed
    scan.feed(pieces[-1])
    assert scan.is_closed
    scan.feed(" \n")
    assert not scan.has_more
    scan.feed("{")
    assert scan.has_more


@pytest.mark.parametrize("text", ["[{}]", "5", '"{}"', " x{}"])
def test_what_begins_otherwise_never_closes(text):
    scan = JsonObjectScanner()
    scan.feed(text)
    assert (scan.is_closed, scan.has_more) == (False, True)


@pytest.mark.parametrize("piece", ['"', "{", "}", '\\"', " ", "[]", 'x"\\'])
def test_each_character_of_long_arguments_is_looked_at_once(piece, monkeypatch):
    looked = 0

    class Counting:
        def __init__(self, pattern):
            self._pattern = pattern

        def search(self, text, at):
            nonlocal looked
            match = self._pattern.search(text, at)
            looked += (len(text) if match is None else match.end()) - at
            return match

    monkeypatch.setattr(native_calls, "_OUTSIDE", Counting(native_calls._OUTSIDE))
    monkeypatch.setattr(native_calls, "_INSIDE", Counting(native_calls._INSIDE))
    scan = JsonObjectScanner()
    scan.feed('{"a": {"b": "')
    for _ in range(100):
        scan.feed(piece * 1000)
    assert looked <= 13 + 100 * 1000 * len(piece)
