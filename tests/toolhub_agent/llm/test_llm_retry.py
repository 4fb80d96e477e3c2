"""Pauses between attempts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from toolhub_agent.llm.errors import JITTER_S, LONGEST_PAUSE_S, is_retryable, parse_retry_after, retry_pause

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def test_pauses_are_anything_up_to_a_bound_that_doubles():
    for attempt, most in [(1, 1.0), (2, 2.0), (3, 4.0), (6, LONGEST_PAUSE_S), (10_000, LONGEST_PAUSE_S)]:
        pauses = [retry_pause(attempt) for _ in range(300)]
        assert 0 <= min(pauses) < most * 0.2
        assert most * 0.8 < max(pauses) <= most


def test_what_a_server_asks_for_is_kept_and_spread():
    pauses = [retry_pause(1, retry_after=7) for _ in range(100)]
    assert 7 <= min(pauses) < max(pauses) <= 7 + JITTER_S


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Fri, 20 Nov 2026 12:00:30 GMT", 30.0),
        ("Fri, 20 Nov 2026 12:00:30 -0000", 30.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("", None),
        (None, None),
        ("Fri, 99 Nov 2026 12:00:30 GMT", None),
    ],
)
def test_both_forms_of_retry_after_are_read(text, seconds):
    assert parse_retry_after(text, NOW) == seconds


def test_statuses_that_pass():
    assert [status for status in range(400, 430) if is_retryable(status)] == [408, 409, 425, 429]
    assert is_retryable(500) and is_retryable(503) and is_retryable(529)
