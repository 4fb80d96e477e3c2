"""What an answer says about the load of its server, and that nonsense says nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub import overload as pressure
from toolhub.channel.base import Refused
from toolhub.overload import (
    LONGEST_S,
    META,
    OverloadSignal,
    overload_in,
    overload_in_http,
    overload_signal,
    parse_retry_after,
)
from toolhub.sessions.session import ERROR_META, refusal

pytestmark = pytest.mark.quick

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def marked(value: Any) -> dict[str, Any]:
    return {"content": [], "_meta": {META: value}}


def refused(code: Any = -32603, message: Any = "no", data: Any = None) -> dict[str, Any]:
    return {"_meta": {ERROR_META: {"code": code, "message": message, "data": data}}}


@pytest.mark.parametrize("result", [{}, {"_meta": None}, {"_meta": []}, {"_meta": {}}, {"_meta": {"other": 1}}])
def test_most_answers_say_nothing(result: dict[str, Any]) -> None:
    assert overload_in(result) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(3, 3), (0.25, 0.25), (0, None), (None, None), (61, LONGEST_S), (1e300, LONGEST_S), (10**400, LONGEST_S)],
)
def test_a_marked_result_says_for_how_long(value: Any, seconds: float | None) -> None:
    assert overload_in(marked(value)) == OverloadSignal(seconds)


def test_for_ever_is_the_longest_time() -> None:
    assert overload_in(marked(float("inf"))) == OverloadSignal(LONGEST_S)


@pytest.mark.parametrize("value", [float("nan"), -1, -0.5, float("-inf"), True, False, "", "soon", "-3", [], {}, [3]])
def test_what_is_no_time_says_nothing(value: Any) -> None:
    assert overload_in(marked(value)) is None


def test_a_time_as_text_is_read_like_the_header() -> None:
    assert overload_in(marked("7")) == OverloadSignal(7)


@pytest.mark.parametrize(
    "error",
    [
        refused(data={"retry_after": 2}),
        refused(data={"retryAfter": 2}),
        refused(data={"retry_after": "nonsense", "retryAfter": 2}),
        refused(code=429, message="HTTP 503", data={"status": 429, "retry_after": 2}),
    ],
)
def test_an_error_of_the_protocol_may_say_for_how_long(error: dict[str, Any]) -> None:
    assert overload_in(error) == OverloadSignal(2)


@pytest.mark.parametrize(
    "error",
    [
        refused(code=429),
        refused(code=503),
        refused(data={"status": 503}),
        refused(data={"status": 429, "retry_after": -1}),
        refused(message="HTTP 429 from upstream"),
        refused(message="upstream: http/503"),
        refused(message="Request failed with status code 429"),
        refused(message="503 Service Unavailable"),
    ],
)
def test_an_error_of_the_protocol_may_say_only_that_it_is_too_much(error: dict[str, Any]) -> None:
    assert overload_in(error) == OverloadSignal()


@pytest.mark.parametrize(
    "error",
    [
        refused(),
        refused(code=True, message=None, data=[429]),
        refused(message="line 429 of 503 is wrong"),
        refused(message="HTTP 4290"),
        refused(message="x" * 10_000 + " HTTP 429"),
        {"_meta": {ERROR_META: "HTTP 429"}},
    ],
)
def test_any_other_error_says_nothing(error: dict[str, Any]) -> None:
    assert overload_in(error) is None


def test_a_text_for_the_model_says_nothing() -> None:
    assert overload_in({"content": [{"type": "text", "text": "HTTP 429 Too Many Requests"}], "isError": True}) is None


@given(anything, anything, anything)
def test_whatever_a_server_sends_is_bounded_or_nothing(value: Any, error: Any, data: Any) -> None:
    for result in (marked(value), {"_meta": {ERROR_META: error}}, refused(value, error, data)):
        said = overload_in(result)
        assert said is None or said.retry_after is None or 0 < said.retry_after <= LONGEST_S


@given(st.none() | st.floats())
def test_what_a_server_marks_is_what_the_hub_reads(seconds: float | None) -> None:
    told = overload_signal(seconds)
    assert overload_in(json.loads(json.dumps({"_meta": told.meta()}))) == told


def test_a_refusal_by_a_session_is_marked_where_every_result_is() -> None:
    busy = refusal(Refused(-32000, "HTTP 429", {"retry_after": 4}))
    assert busy["_meta"][META] == 4
    assert META not in refusal(Refused(-32602, "no such tool"))["_meta"]


def test_the_error_is_looked_for_where_the_session_puts_it() -> None:
    assert pressure._ERROR_META == ERROR_META


@pytest.mark.parametrize(
    ("status", "header", "expected"),
    [
        (429, "2", OverloadSignal(2)),
        (503, " 3600 ", OverloadSignal(60)),
        (429, "", OverloadSignal()),
        (500, "2", None),
        (200, "2", None),
    ],
)
def test_an_http_answer_says_it_by_status_and_header(status: int, header: str, expected: OverloadSignal | None) -> None:
    assert overload_in_http(status, header) == expected


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert parse_retry_after("120") == 120
    assert parse_retry_after("Sun, 01 Nov 2026 12:01:30 GMT", now) == 90
    assert parse_retry_after("Sun, 01 Nov 2026 11:00:00 GMT", now) == 0
    assert parse_retry_after("Sun, 01 Nov 2026 12:00:05 -0000", now) == 5
    for nothing in ("", "soon", "-5", "1.5", "١٢", "Sun, 99 Nov 2026", "1 Jan 1 1:1:1 +9" + "9" * 30):
        assert parse_retry_after(nothing, now) is None
