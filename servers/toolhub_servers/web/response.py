"""The response to a request, and its body:

decoded up to a limit, so that neither a long body nor a decompression bomb costs more.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio.lowlevel


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. url: the one that answered, after redirects; headers: names in lower case."""

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False
    """Whether the body went on beyond `max_bytes`."""

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """Raises ValueError."""
        return json.loads(self.body)


ACCEPT_ENCODING = "gzip, deflate"
_GZIP = 16 + zlib.MAX_WBITS
# Decoded between two chances for other tasks to run.
_STEP_BYTES = 256 << 10
# A limit on what comes in, too: blocks that unfold to nothing would otherwise never reach the limit on what comes out.
_OVERHEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Body:
    """received: bytes that were read to get it."""

    data: bytes
    is_cut: bool
    received: int


async def read_body(chunks: AsyncIterable[bytes], encoding: str, limit: int) -> Body:
    """Return at most `limit` decoded bytes. Raises ValueError if they are not what `encoding` (a header) says."""
    decoder = make_decoder(encoding)
    # A BytesIO lends its buffer to `getvalue()`; joining a list would for a moment need twice the room.
    data, received = io.BytesIO(), 0
    async for chunk in chunks:
        received += len(chunk)
        for piece in decoder.feed(chunk):
            room = limit - data.tell()
            data.write(piece[:room])
            if len(piece) > room:
                return Body(data.getvalue(), True, received)
            if len(piece) == _STEP_BYTES:
                await anyio.lowlevel.checkpoint()
        if received > limit + _OVERHEAD_BYTES:
            return Body(data.getvalue(), True, received)
    decoder.finish()
    return Body(data.getvalue(), False, received)


class Plain:
    """No encoding."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        pass


class Inflate:
    """gzip with any number of members, zlib, or the bare deflate that some servers send under that name."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield pieces of at most _STEP_BYTES. Raises ValueError."""
        if self._stream is None:
            self._stream = zlib.decompressobj(_GZIP if self._is_gzip else _wbits(data))
        stream = self._stream
        while data or not stream.eof:
            if stream.eof:
                if not (self._is_gzip and data.startswith(b"\x1f")):
                    return  # padding behind the last member
                stream = self._stream = zlib.decompressobj(_GZIP)
            try:
                piece = stream.decompress(data, _STEP_BYTES)
            except zlib.error as exc:
                raise ValueError(f"its compressed body is damaged ({exc})") from exc
            data = stream.unused_data if stream.eof else stream.unconsumed_tail
            yield piece
            if not data and len(piece) < _STEP_BYTES:
                return

    def finish(self) -> None:
        """Raises ValueError if there should be more. (The answer to a HEAD has an encoding, but no body.)"""
        if self._stream is not None and not self._stream.eof:
            raise ValueError("its compressed body ended too soon")


def _wbits(start: bytes) -> int:
    return zlib.MAX_WBITS if start and start[0] & 0x0F == 8 else -zlib.MAX_WBITS  # RFC 1950 section 2.2


def make_decoder(encoding: str) -> Plain | Inflate:
    """Read a Content-Encoding. Raises ValueError for one that was not asked for."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return Plain()
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflate(is_gzip=name != "deflate")
    raise ValueError(f"its body is in an encoding that was not asked for: {encoding[:50]!r}")
