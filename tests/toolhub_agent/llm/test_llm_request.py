"""The JSON and the headers of a request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.llm.client import LlmRequest, chat_request_body
from toolhub_agent.llm.transport import MAX_HEADER_CHARS, SESSION_HEADERS, engine_root, header_value, session_headers

from toolhub.config.agent import Sampling

USER = {"role": "user", "content": "hello"}
OPEN = {"role": "assistant", "content": "The answer"}


def test_only_what_was_asked_for_is_sent():
    assert chat_request_body(LlmRequest("s", [USER]), "m") == {
        "model": "m",
        "messages": [USER],
        "temperature": 1.0,
        "top_p": 0.95,
        "max_tokens": 16384,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_everything_of_the_sampling_is_sent_and_the_body_wins():
    sampling = Sampling(
        temperature=None, top_p=None, top_k=20, min_p=0.1, repetition_penalty=1.05, seed=7, extra_body={"extra": 1}
    )
    body = chat_request_body(LlmRequest("s", [USER], {"max_tokens": 99, "tools": []}, sampling), "m")
    assert list(body) == [
        *("model", "messages", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed", "extra"),
        *("tools", "stream", "stream_options"),
    ]
    assert body["max_tokens"] == 99


def test_a_repetition_penalty_of_one_is_left_out():
    assert "repetition_penalty" not in chat_request_body(
        LlmRequest("s", [USER], sampling=Sampling(repetition_penalty=1.0)), "m"
    )


@pytest.mark.parametrize(("last", "goes_on"), [(USER, False), (OPEN, True), ({**OPEN, "tool_calls": [{}]}, False)])
def test_the_model_goes_on_with_its_own_last_message(last, goes_on):
    body = chat_request_body(LlmRequest("s", [USER, last]), "m")
    assert ("continue_final_message" in body, body.get("add_generation_prompt", True)) == (goes_on, not goes_on)


def test_the_same_request_is_the_same_text():
    request = LlmRequest("s", [USER], {"tools": [{"b": 1, "a": 2}]})
    assert json.dumps(chat_request_body(request, "m")) == json.dumps(chat_request_body(request, "m"))


def test_every_router_gets_its_header_and_the_last_request_says_so():
    assert session_headers("t") == dict.fromkeys(SESSION_HEADERS, "t")


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_name_makes_a_header_of_its_own(one, other):
    values = header_value(one), header_value(other)
    assert all(value.isascii() and (value.isprintable()) and len(value) <= MAX_HEADER_CHARS for value in values)
    assert (values[0] == values[1]) == (one == other)


def test_an_engines_own_pages_are_beside_the_api():
    assert engine_root("http://a:1/v1") == engine_root("http://a:1/") == "http://a:1"
