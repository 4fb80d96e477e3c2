"""What is kept of what a program prints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from toolhub_sandbox.e2b.output import CappedText, MarkedStream

MARK = "\x1eabcd:"


def heard(pieces, *, limit=1000):
    ends = []
    stream = MarkedStream(limit, MARK, lambda: ends.append(True))
    for piece in pieces:
        stream.feed(piece)
    stream.close()
    return stream, ends


def test_the_first_bytes_are_kept_and_the_rest_is_counted():
    capped = CappedText(5)
    capped.add("abc")
    capped.add("defg")
    assert (capped.text, capped.dropped_bytes) == ("abcde", 2)


def test_a_character_cut_in_two_at_the_limit_is_left_out():
    capped = CappedText(3)
    capped.add("äö")
    assert (capped.text, capped.dropped_bytes) == ("ä", 1)


@given(st.text(max_size=30), st.integers(0, 255), st.text(max_size=10), st.lists(st.integers(0, 60), max_size=8))
def test_the_mark_is_found_however_the_stream_is_cut(text, code, later, cuts):
    whole = f"{text}{MARK}{code}\n{later}"
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    stream, ends = heard(whole[a:b] for a, b in zip(edges, edges[1:], strict=False))
    assert (stream.kept.text, stream.exit_code, ends) == (text.partition(MARK)[0], code, [True])


def test_without_a_mark_everything_is_kept():
    stream, ends = heard(["some text\x1e", "ab"])
    assert (stream.kept.text, stream.exit_code, ends) == ("some text\x1eab", None, [])


def test_what_comes_after_the_mark_is_not_the_programs():
    stream, ends = heard([f"mine{MARK}0\n", "not mine", f"{MARK}1\n"])
    assert (stream.kept.text, stream.exit_code, ends) == ("mine", 0, [True])
