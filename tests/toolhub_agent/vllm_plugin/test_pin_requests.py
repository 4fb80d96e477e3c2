"""What a request sends in vllm_xargs is a wish only in the agreed form; anything else is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolhub_agent.vllm_plugin.pins import MAX_SESSION_CHARS, PinRequest, pin_request, released_key, session_key


def wish(**extra: Any) -> PinRequest | None:
    return pin_request(extra, "request-1", max_ttl=100)


def test_a_pin_is_for_its_session() -> None:
    assert wish(pin_ttl_s=20, session_id="task-7") == PinRequest(("session", "task-7"), 20)


def test_without_a_session_it_is_the_requests_own() -> None:
    assert wish(pin_ttl_s=0.5) == PinRequest(("request", "request-1"), 0.5)


def test_a_long_one_is_cut() -> None:
    assert wish(pin_ttl_s=1e9, session_id="a") == PinRequest(("session", "a"), 100)


def test_an_operator_can_forbid_pins() -> None:
    assert pin_request({"pin_ttl_s": 5}, "request-1", max_ttl=0) is None


@pytest.mark.parametrize(
    "ttl", [0, -1, True, "20", None, [20], float("nan"), float("inf"), pytest.param(10**400, id="huge")]
)
def test_what_is_no_time_is_no_pin(ttl: object) -> None:
    assert wish(pin_ttl_s=ttl, session_id="a") is None


@pytest.mark.parametrize("session", ["", "x" * (MAX_SESSION_CHARS + 1), "a\nb", "\x00", 7, None, ["a"]])
def test_what_is_no_name_is_no_session(session: object) -> None:
    assert wish(pin_ttl_s=5, session_id=session) is None
    assert released_key({"release_session": session}) is None
    assert session_key({"session_id": session}) is None


def test_a_stock_request_asks_for_nothing() -> None:
    for extra in (None, {}, {"session_id": "a"}):
        assert pin_request(extra, "request-1", max_ttl=100) is None and released_key(extra) is None


def test_a_request_that_releases_is_never_pinned() -> None:
    assert wish(release_session="a", pin_ttl_s=5, session_id="a") is None
    assert released_key({"release_session": "a"}) == ("session", "a")


def test_a_session_cannot_be_named_like_a_request() -> None:
    pinned = wish(pin_ttl_s=5)
    assert pinned is not None and released_key({"release_session": "request-1"}) != pinned.key


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from(["pin_ttl_s", "session_id", "release_session", "other"]), ANYTHING))
def test_nothing_that_is_sent_raises_or_exceeds_the_limit(extra: dict[str, Any]) -> None:
    found = pin_request(extra, "request-1", max_ttl=100)
    assert found is None or 0 < found.ttl <= 100
    released_key(extra)
    session_key(extra)
