"""Captured output: the first bytes are kept, the rest is counted, and nobody waits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from toolhub_sandbox.inside.processes import Capture


@pytest.fixture
def capture() -> Iterator[Capture]:
    stream = Capture(10)
    yield stream
    stream.close()


def test_what_fits_is_kept_whole(capture: Capture) -> None:
    os.write(capture.writer, b"0123456789")
    assert capture.read()
    assert capture.take() == (b"0123456789", 0)
    capture.close_writer()


def test_what_does_not_fit_is_counted(capture: Capture) -> None:
    for _ in range(3):
        os.write(capture.writer, b"01234567")
        capture.read()
    assert capture.take() == (b"0123456701", 14)
    capture.close_writer()


def test_taking_makes_room_again(capture: Capture) -> None:
    os.write(capture.writer, b"x" * 15)
    capture.read()
    assert capture.take() == (b"x" * 10, 5)
    assert capture.take() == (b"", 0)
    os.write(capture.writer, b"y")
    capture.read()
    assert capture.take() == (b"y", 0)
    capture.close_writer()


def test_reading_never_waits_and_tells_the_end(capture: Capture) -> None:
    assert capture.read()
    capture.close_writer()
    assert not capture.read()


def test_draining_takes_all_that_a_full_pipe_holds(capture: Capture) -> None:
    os.set_blocking(capture.writer, False)
    written = 0
    while True:
        try:
            written += os.write(capture.writer, b"z" * 4096)
        except BlockingIOError:
            break
    capture.drain()
    kept, dropped = capture.take()
    assert len(kept) + dropped == written
    capture.close_writer()


def test_draining_ends_at_the_end_of_the_stream(capture: Capture) -> None:
    os.write(capture.writer, b"last words")
    capture.close_writer()
    capture.drain()
    assert capture.take() == (b"last words", 0)
