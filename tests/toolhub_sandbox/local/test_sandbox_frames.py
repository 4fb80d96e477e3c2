"""Messages: however they are cut, they arrive; what is none is refused before anything is allocated."""

from __future__ import annotations

import json
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolhub_sandbox.inside.frames import MAX_HEAD, BadFrame, FrameBuffer, encode, receive

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
heads = st.dictionaries(st.text().filter(lambda key: key != "parts"), values, max_size=4)
messages = st.lists(st.tuples(heads, st.lists(st.binary(max_size=50), max_size=3)), max_size=5)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


def frame(head: bytes, body: bytes = b"", *, head_size: int | None = None, body_size: int | None = None) -> bytes:
    sizes = (len(head) if head_size is None else head_size, len(body) if body_size is None else body_size)
    return struct.pack("<II", *sizes) + head + body


@settings(max_examples=60)
@given(messages, st.lists(st.integers(0, 2000), max_size=20))
def test_messages_arrive_the_same_however_they_are_cut(sent, cuts) -> None:
    buffer = FrameBuffer(1000)
    data = b"".join(encode(head, *parts) for head, parts in sent)
    got = [message for piece in pieces(data, cuts) for message in buffer.feed(piece)]
    assert got == [(head | {"parts": [len(part) for part in parts]}, parts) for head, parts in sent]
    assert buffer.feed(b"") == []


@given(st.binary(max_size=200))
def test_whatever_arrives_is_messages_or_a_bad_frame_and_nothing_else(data) -> None:
    buffer = FrameBuffer(100)
    try:
        for head, parts in buffer.feed(data):
            assert [len(part) for part in parts] == head["parts"]
    except BadFrame:
        pass


@pytest.mark.parametrize(
    "data",
    [
        frame(b"", head_size=MAX_HEAD + 1),
        frame(b"{}", body_size=101),
        frame(b"not json"),
        frame(b"\xff\xfe"),
        frame(b"[]"),
        frame(b"{}"),
        frame(b"[" * 100_000),
        frame(b'{"parts": 3}'),
        frame(b'{"parts": [true]}', b"x"),
        frame(b'{"parts": [-1, 2]}', b"x"),
        frame(b'{"parts": [2]}', b"x"),
        frame(b'{"parts": ["1"]}', b"x"),
        frame(b'{"parts": [1e0]}', b"x"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        FrameBuffer(100).feed(data)


def test_a_message_that_is_too_long_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(BadFrame, match=r"2 \+ 4294967295"):
        FrameBuffer(1 << 20).feed(frame(b"{}", body_size=0xFFFFFFFF)[:8])


def test_a_head_cannot_lie_about_its_parts() -> None:
    sent = encode({"parts": [99]}, b"abc")
    assert FrameBuffer(100).feed(sent) == [({"parts": [3]}, [b"abc"])]


def test_text_outside_unicode_travels_in_a_head() -> None:
    assert FrameBuffer(0).feed(encode({"a": "\ud800"}))[0][0]["a"] == "\ud800"


def test_receive_waits_for_a_whole_message_and_tells_the_end() -> None:
    here, there = socket.socketpair()
    with here:
        with there:
            data = encode({"n": 1}, b"x" * 1000)
            there.sendall(data[:5])
            there.sendall(data[5:])
            head, parts = receive(here, FrameBuffer(1000))
            assert (head["n"], parts) == (1, [b"x" * 1000])
        with pytest.raises(EOFError):
            receive(here, FrameBuffer(1000))


def test_a_head_is_plain_json() -> None:
    data = encode({"op": "x"}, b"ab", b"")
    size, body = struct.unpack_from("<II", data)
    assert json.loads(data[8 : 8 + size]) == {"op": "x", "parts": [2, 0]}
    assert body == 2
