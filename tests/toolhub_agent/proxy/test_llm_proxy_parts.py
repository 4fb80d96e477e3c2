"""The pure parts: events, bodies, chains, forms, calls, pace."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.llm.transport import SseSplitter, event_data
from toolhub_agent.proxy.forward import is_usage_only
from toolhub_agent.proxy.http_messages import ProxyRequest, inject_engine_fields, read_object
from toolhub_agent.proxy.prefix_index import AssistantMessageFormat, fingerprints_of, prefix_hashes
from toolhub_agent.proxy.sessions import arguments_digest, pending_tool_calls

ENDS = ("\n\n", "\r\n\r\n", "\r\r")


@given(st.lists(st.tuples(st.text("ab: \n", min_size=1, max_size=9), st.sampled_from(ENDS))), st.data())
def test_events_are_cut_at_their_ends_wherever_the_bytes_are(parts, data):
    whole = "".join(f"data: x{text.replace(chr(10), '')}{end}" for text, end in parts).encode()
    splitter, got, at = SseSplitter(), [], 0
    while at < len(whole):
        step = data.draw(st.integers(1, 7))
        got += splitter.feed(whole[at : at + step])
        at += step
    assert b"".join(got) + splitter.take_rest() == whole
    assert len(got) == len(parts)


@pytest.mark.parametrize(
    ("event", "is_it"),
    [
        ('{"choices":[],"usage":{"prompt_tokens":1}}', True),
        ('{"id": "x", "choices" : [ ], "usage": {}}', True),
        ('{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}', False),
        ('{"choices":[],"usage":null}', False),
        ('{"choices":[],"prompt_filter_results":[]}', False),
    ],
)
def test_only_the_chunk_that_was_asked_for_is_left_out(event, is_it):
    assert is_usage_only(f"data: {event}\n\n".encode()) is is_it


@pytest.mark.parametrize("raw", [b"{}", b' { "a" : 1 } \n', b'{"stream":true}', b'{"stream": true, "x": {"a": 1}}'])
@pytest.mark.parametrize("wishes", [{}, {"k": {"ttl": 1}}, {"x": {"a": 2, "b": 3}}])
def test_fields_are_added_behind_the_client_s_own_which_stand(raw, wishes):
    asked = ProxyRequest("/chat/completions", raw, read_object(raw))
    made = json.loads(inject_engine_fields(asked, wishes, with_usage=True))
    assert {name: made[name] for name in asked.body if name != "x"} == {
        name: value for name, value in asked.body.items() if name != "x"
    }
    if "x" in asked.body:
        assert made["x"] == {**wishes.get("x", {}), "a": 1}
    assert ("stream_options" in made) is asked.is_stream


def test_a_client_that_asks_for_no_usage_does_not_get_it_with_every_chunk():
    options = {"include_usage": False, "continuous_usage_stats": True, "other": 1}
    raw = json.dumps({"stream": True, "stream_options": options}).encode()
    made = json.loads(inject_engine_fields(ProxyRequest("/x", raw, read_object(raw)), {}, with_usage=True))
    assert made["stream_options"] == {"include_usage": True, "continuous_usage_stats": False, "other": 1}


def turns(count, change_at=None):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "t"}]
    for number in range(count):
        messages += [{"role": "assistant", "content": f"a{number}"}, {"role": "user", "content": f"r{number}"}]
    if change_at is not None:
        messages[change_at] = {**messages[change_at], "content": "omitted"}
    return messages


@pytest.mark.parametrize("change_at", range(10))
def test_chains_agree_up_to_the_first_difference(change_at):
    assert prefix_hashes(turns(4)).common(prefix_hashes(turns(4, change_at))) == change_at
    assert prefix_hashes(turns(2)).common(prefix_hashes(turns(4))) == 6
    assert prefix_hashes(turns(4), group="a").common(prefix_hashes(turns(4), group="b")) == 0


CALLS = ({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},)


@pytest.mark.parametrize(
    ("text", "reasoning", "sent"),
    [
        ("<think>hm</think>\n\nyes ", "", {"content": "<think>hm</think>\n\nyes "}),
        ("<think>hm</think>\n\nyes ", "", {"content": "<think>hm</think>\n\nyes"}),
        ("<think>hm</think>\n\nyes", "", {"content": "yes"}),
        ("hm</think>\n\nyes", "", {"content": "\n\nyes"}),
        ("yes", "hm", {"content": "yes"}),
        ("yes", "hm", {"content": "yes", "reasoning_content": "hm"}),
        ("yes", "hm", {"content": "<think>\nhm\n</think>\n\nyes"}),
    ],
)
def test_how_a_client_sends_answers_back_is_learned_from_one(text, reasoning, sent):
    traces = fingerprints_of(text, reasoning, ())
    message = {"role": "assistant", **sent}
    assert traces.is_of(message) and not traces.is_of({"role": "assistant", "content": "other"})
    form = traces.learn(message, AssistantMessageFormat())
    assert form.message(text, reasoning, ()) == message
    other = form.message("<think>so</think>\n\nno", "", ())  # the next answer, in the same form
    assert ("so" in other["content"]) is (form.way not in (2, 3))


def test_native_calls_come_back_with_the_content_that_the_client_gives_them():
    traces = fingerprints_of("", "", CALLS)
    for content in ("", None):
        message = {"role": "assistant", "content": content, "tool_calls": list(CALLS)}
        assert traces.is_of(message)
        assert traces.learn(message, AssistantMessageFormat()).message("", "", CALLS) == message


def test_calls_are_known_by_tool_and_arguments():
    text = (
        "<think><use_mcp_tool><server_name>s</server_name><tool_name>no</tool_name><arguments>{}</arguments>"
        "</use_mcp_tool></think><use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>search</tool_name>\n"
        '<arguments>\n{"b": 1, "a": "x", "none": null}\n</arguments>\n</use_mcp_tool>'
    )
    (wanted,) = pending_tool_calls(text, ())
    assert (wanted.server, wanted.name) == ("s", "search")
    assert wanted.arguments == arguments_digest({"a": "x", "b": 1}) != arguments_digest({"a": "x"})
    native = [{"id": "1", "function": {"name": "tools-search", "arguments": '{"a": "x", "b": 1}'}}]
    (other,) = pending_tool_calls("", native)
    assert other.arguments == wanted.arguments
    assert other.may_be("search") and not other.may_be("arch") and not other.may_be("find")


def test_requests_and_events_leave_no_string_values_behind() -> None:
    bodies = [read_object(b'{"content": "a text"}')["content"] for _ in range(2)]
    events = [event_data(b'data: {"content": "a text"}\n\n')["content"] for _ in range(2)]
    assert len({id(value) for value in bodies + events}) == 4
