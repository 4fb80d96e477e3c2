"""Server-sent events, whatever the pieces in which they arrive."""

from __future__ import annotations

import pytest

from toolhub.channel.event_buffer import EventBuffer, EventTooLarge, ServerEvent

pytestmark = pytest.mark.quick

STREAM = (
    b": a comment\r\n\r\n"
    b"id: 7\r\nretry: 250\r\ndata: \r\n\r\n"
    b"event: message\r\nid: 8\r\ndata: {}\r\n\r\n"
    b"event:other\ndata:one\ndata: two\n\n"
    b"data: three\r\r"
    b"unknown: field\n\n"
    b"data: not complete"
)
EVENTS = [
    ServerEvent("message", b"", "7", 250),
    ServerEvent("message", b"{}", "8"),
    ServerEvent("other", b"one\ntwo"),
    ServerEvent("message", b"three"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_in_pieces_of_any_size(size: int) -> None:
    buffer = EventBuffer(1000)
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in buffer.feed(piece)] == EVENTS


@pytest.mark.parametrize("line", [b"id: a\0b", b"retry: soon", b"retry: 99999999999999", b"retry: -1"])
def test_a_field_that_makes_no_sense_is_ignored(line: bytes) -> None:
    assert EventBuffer(1000).feed(line + b"\ndata: x\n\n") == [ServerEvent("message", b"x")]


def test_the_limit_is_for_one_event_and_not_for_the_stream() -> None:
    buffer = EventBuffer(10)
    assert len(buffer.feed(b"data: 1234\n\n" * 100)) == 100


@pytest.mark.parametrize("pieces", [[b"data: 12345\n\n"], [b"data: ", b"12345"], [b"data: 1\n"] * 2])
def test_an_event_over_the_limit_is_refused_before_it_is_complete(pieces: list[bytes]) -> None:
    buffer = EventBuffer(10)
    with pytest.raises(EventTooLarge, match="more than 10 bytes"):
        for piece in pieces:
            buffer.feed(piece)
