"""Chunks become pieces and an answer."""

from __future__ import annotations

import pytest
from toolhub_agent.errors import AnswerUnreadable
from toolhub_agent.llm.accumulator import AnswerAccumulator
from toolhub_agent.llm.errors import AttemptFailed
from toolhub_agent.types import Delta, Usage


def chunk(finish: str | None = None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def read(*chunks):
    reader = AnswerAccumulator()
    deltas = [delta for piece in chunks if (delta := reader.feed(piece)) is not None]
    reader.finish()
    return reader, deltas


def test_text_and_reasoning_come_piece_by_piece_and_whole():
    reader, deltas = read(
        chunk(role="assistant", content=""),
        chunk(reasoning_content="hm"),
        chunk(reasoning="m"),
        chunk(content="An"),
        chunk(content="swer", finish="stop"),
    )
    assert deltas == [Delta(reasoning="hm"), Delta(reasoning="m"), Delta("An"), Delta("swer")]
    assert (reader.text, reader.reasoning, reader.finish_reason) == ("Answer", "hmm", "stop")


def test_tool_calls_are_put_together_by_index():
    def call(index, arguments, **head):
        return {"index": index, **head, "function": {"arguments": arguments, **({"name": "s-t"} if head else {})}}

    reader, deltas = read(
        chunk(tool_calls=[call(0, '{"q"', id="a", type="function"), call(1, "{", id="b", type="function")]),
        chunk(tool_calls=[call(1, "}")]),
        chunk(tool_calls=[call(0, ": 1}")]),
        chunk(finish="tool_calls"),
    )
    assert len(deltas) == 3
    assert reader.calls() == (
        {"id": "a", "type": "function", "function": {"name": "s-t", "arguments": '{"q": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "s-t", "arguments": "{}"}},
    )


def test_a_server_may_leave_out_index_and_id_and_send_the_arguments_as_an_object():
    reader, _ = read(
        chunk(tool_calls=[{"function": {"name": "s-t", "arguments": {"q": 1}}}]),
        chunk(finish="tool_calls"),
    )
    (call,) = reader.calls()
    assert call["id"] and call["function"] == {"name": "s-t", "arguments": '{"q": 1}'}


def test_dynamos_event_is_handed_on_as_a_call_that_is_complete():
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "s-t", "arguments": "{}"}}
    _, deltas = read({"choice_index": 0, "tool_call": call}, chunk(finish="tool_calls"))
    assert deltas == [Delta(dispatched=call)]


@pytest.mark.parametrize(
    ("usage", "more", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 64}}, {}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 96}}, {}, 0),
        ({"prompt_tokens_details": None}, {}, None),
        ({"cached_tokens": 64}, {}, 64),
        ({"prompt_cache_hit_tokens": 64}, {}, 64),
        ({}, {"sglext": {"cached_tokens_details": {"device": 64, "host": 0}}}, 64),
        ({}, {"timings": {"cache_n": 64}}, 64),
        ({"prompt_tokens_details": {"cached_tokens": "many"}}, {}, None),
    ],
)
def test_cached_tokens_are_read_in_every_spelling(usage, more, cached):
    last = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 5, **usage}, **more}
    reader, _ = read(chunk(content="a", finish="stop"), last)
    assert reader.usage == Usage(100, 5, cached)


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        [],
        {"choices": "none"},
        {"choices": ["none"]},
        {"choices": [{"delta": "none"}]},
        chunk(content=5),
        chunk(tool_calls={"index": 0}),
        chunk(tool_calls=["none"]),
        chunk(tool_calls=[{"index": 1 << 40, "function": {}}]),
    ],
    ids=repr,
)
def test_what_is_no_chunk_fails_the_attempt(bad):
    with pytest.raises(AttemptFailed, match="not an answer of this API"):
        AnswerAccumulator().feed(bad)


def test_a_stream_without_a_finish_reason_is_no_answer():
    with pytest.raises(AttemptFailed, match="ended before the answer did"):
        read(chunk(content="half an ans"))


@pytest.mark.parametrize("reason", ["content_filter", "abort", "error"])
def test_other_ways_to_finish_are_unreadable(reason):
    with pytest.raises(AnswerUnreadable, match=reason):
        read(chunk(content="a", finish=reason))


def test_an_answer_that_was_cut_at_its_length_says_so():
    reader, _ = read(chunk(content="a", finish="length"))
    assert reader.finish_reason == "length"
