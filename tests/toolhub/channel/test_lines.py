"""Lines of JSON: cut out of any chunks, bounded, decoded like the standard decoder does it, short or long."""

from __future__ import annotations

import json

import pytest

from toolhub.channel.jsonrpc.lines import INLINE_BYTES, LineBuffer, LineTooLong, decode

pytestmark = pytest.mark.quick

LONG = " " * INLINE_BYTES  # white space that moves a line over to the decoder for long ones
padding = pytest.mark.parametrize("padding", ["", LONG], ids=["short", "long"])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_lines_do_not_depend_on_how_they_were_cut(size: int) -> None:
    stream = b"one\n\ntwo two\nthree\nrest"
    buffer = LineBuffer(limit=10)
    lines = [line for at in range(0, len(stream), size) for line in buffer.feed(stream[at : at + size])]
    assert lines == [b"one", b"", b"two two", b"three"]
    assert buffer.feed(b"\n") == [b"rest"]


def test_a_line_over_the_limit_is_refused_before_it_has_ended() -> None:
    buffer = LineBuffer(limit=10)
    assert buffer.feed(b"0123456789") == []
    with pytest.raises(LineTooLong, match="more than 10 bytes"):
        buffer.feed(b"0")


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
    assert await decode(b'{"text": "caf\xe9"}' + padding.encode()) == {"text": "caf\ufffd"}


@pytest.mark.anyio
@padding
@pytest.mark.parametrize("line", ["", "{", "[1, 2", '{"a": 1}}', "nothing", '"open'])
async def test_what_is_no_json_is_a_value_error(line: str, padding: str) -> None:
    with pytest.raises(ValueError):
        await decode((line + padding).encode())


@pytest.mark.anyio
@padding
async def test_bottomless_nesting_is_an_error_and_no_crash(padding: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        await decode(b"[" * 100_000 + padding.encode())
