"""Splitting a byte stream into lines, and decoding them."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub.channel.jsonrpc.lines import INLINE_BYTES, LineBuffer, LineTooLong, decode

line = st.binary(max_size=30).map(lambda text: text.replace(b"\n", b""))


def chunks_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.quick
@given(st.lists(line), line, st.lists(st.integers(0, 10_000), max_size=20))
def test_the_lines_do_not_depend_on_how_the_stream_was_cut(lines, unfinished, cuts):
    buffer = LineBuffer(limit=100)
    stream = b"".join(each + b"\n" for each in lines) + unfinished
    assert [got for chunk in chunks_of(stream, cuts) for got in buffer.feed(chunk)] == lines
    assert buffer.feed(b"\n") == [unfinished]


@pytest.mark.quick
@given(st.lists(line, min_size=1), st.lists(st.integers(0, 10_000), max_size=20), st.integers(1, 30))
def test_the_verdict_on_a_long_line_does_not_depend_on_how_the_stream_was_cut(lines, cuts, limit):
    buffer = LineBuffer(limit)
    refused = False
    try:
        for chunk in chunks_of(b"".join(each + b"\n" for each in lines), cuts):
            buffer.feed(chunk)
    except LineTooLong as exc:
        refused = str(limit) in str(exc)
    assert refused is any(len(each) > limit for each in lines)


@pytest.mark.quick
def test_a_line_that_never_ends_is_refused_before_it_fills_memory():
    buffer = LineBuffer(limit=1000)
    assert buffer.feed(b"short\n" + b"x" * 400) == [b"short"]
    for _ in range(6):
        buffer.feed(b"x" * 100)
    with pytest.raises(LineTooLong, match="1000 bytes"):
        buffer.feed(b"x")


@pytest.mark.quick
def test_a_line_of_exactly_the_limit_is_taken():
    assert LineBuffer(limit=4).feed(b"abcd\n") == [b"abcd"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=15,
)


@pytest.mark.anyio
@given(json_values, st.booleans())
async def test_a_short_line_decodes_as_the_standard_library_does(value, ascii_only):
    line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert await decode(line) == value


@pytest.mark.anyio
async def test_a_line_over_a_mebibyte_decodes_as_the_standard_library_does():
    value = {
        "numbers": [0, -1, 1.5e300, 2**70, True, None],
        "text": 'é \u2028 😀 "quoted" \\ \n',
        "deep": [[[{"a": {"b": []}}]]],
        "many": [{"id": n, "name": f"row {n}", "tags": ["x", "y"]} for n in range(20_000)],
        "blob": "z" * INLINE_BYTES,
    }
    line = json.dumps(value).encode()
    assert len(line) > INLINE_BYTES
    assert await decode(line) == json.loads(line) == value


@pytest.mark.anyio
@pytest.mark.parametrize("padding", [0, INLINE_BYTES], ids=["short", "long"])
async def test_invalid_utf8_is_replaced(padding):
    line = b'{"text": "a\xff\xfeb", "pad": "' + b"x" * padding + b'"}'
    assert (await decode(line))["text"] == "a\ufffd\ufffdb"


@pytest.mark.anyio
@pytest.mark.parametrize("padding", [0, INLINE_BYTES], ids=["short", "long"])
@pytest.mark.parametrize("line", [b"", b"Server listening", b'{"cut": ', b"{} {}"])
async def test_what_is_not_json_is_a_value_error(line, padding):
    with pytest.raises(ValueError):
        await decode(line + b" " * padding)
