"""Lines of JSON: cut out of any chunks, bounded, decoded like the standard decoder does it, short or long."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub.channel.jsonrpc.pipes import INLINE_BYTES, LineBuffer, LineTooLong, decode, decode_inline

pytestmark = pytest.mark.quick

LONG = " " * INLINE_BYTES  # white space that moves a line over to the decoder for long ones
padding = pytest.mark.parametrize("padding", ["", LONG], ids=["short", "long"])


line = st.binary(max_size=30).map(lambda text: text.replace(b"\n", b""))


def chunks_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(line), line, st.lists(st.integers(0, 10_000), max_size=20))
def test_the_lines_do_not_depend_on_how_the_stream_was_cut(lines, unfinished, cuts):
    buffer = LineBuffer(limit=100)
    stream = b"".join(each + b"\n" for each in lines) + unfinished
    assert [got for chunk in chunks_of(stream, cuts) for got in buffer.feed(chunk)] == lines
    assert buffer.feed(b"\n") == [unfinished]


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


def test_a_line_that_never_ends_is_refused_before_it_fills_memory():
    buffer = LineBuffer(limit=1000)
    assert buffer.feed(b"short\n" + b"x" * 400) == [b"short"]
    for _ in range(6):
        buffer.feed(b"x" * 100)
    with pytest.raises(LineTooLong, match="1000 bytes"):
        buffer.feed(b"x")


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
@padding
@pytest.mark.parametrize(
    "value",
    [None, True, -1.5e300, 2**70, 'ü\u2028\U0001f600"\\/\b', [[], {}, [{}]], {"a": {"a": [1, None, {"b": ""}]}, "": 0}],
)
async def test_values_survive(value: object, padding: str) -> None:
    assert await decode((json.dumps(value) + padding).encode()) == value


@pytest.mark.anyio
@padding
async def test_bytes_that_are_no_utf8_become_replacement_characters(padding: str) -> None:
    assert await decode(b'{"text": "caf\xe9 a\xff\xfeb"}' + padding.encode()) == {"text": "caf\ufffd a\ufffd\ufffdb"}


@pytest.mark.anyio
@padding
@pytest.mark.parametrize("line", ["", "{", "[1, 2", '{"a": 1}}', "{} {}", '{"cut": ', "Server listening", '"open'])
async def test_what_is_no_json_is_a_value_error(line: str, padding: str) -> None:
    with pytest.raises(ValueError):
        await decode((line + padding).encode())


@pytest.mark.anyio
@padding
async def test_bottomless_nesting_is_an_error_and_no_crash(padding: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        await decode(b"[" * 100_000 + padding.encode())


def test_decoding_keeps_no_string_values() -> None:
    first, second = (decode_inline(b'{"key": "a value of a result"}') for _ in range(2))
    assert first == second
    assert first["key"] is not second["key"]
