"""The response to a request, and its body.

A body is decoded up to a limit, so a long body and a decompression bomb cost no more than that.
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
    """One answer. url: of the page that answered, after redirects. headers: lower-case names."""

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False
    """Whether the body was longer than `max_bytes`."""

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """Parse the body as JSON. Raises ValueError."""
        return json.loads(self.body)


ACCEPT_ENCODING = "gzip, deflate"
_GZIP = 16 + zlib.MAX_WBITS
# Decoded at a time, so that other tasks can run in between.
_STEP_BYTES = 256 << 10
# Limits the received bytes too: blocks that decode to nothing would never reach the limit on decoded bytes.
_OVERHEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """received: how many bytes were read for it."""

    data: bytes
    is_cut: bool
    received: int


async def read_body(chunks: AsyncIterable[bytes], encoding: str, limit: int) -> ResponseBody:
    """Return at most `limit` decoded bytes. Raises ValueError if they are not what `encoding` (a header) says."""
    decoder = make_decoder(encoding)
    # A BytesIO lends its buffer to `getvalue()`; joining a list would need twice the memory for a moment.
    data, received = io.BytesIO(), 0
    async for chunk in chunks:
        received += len(chunk)
        for piece in decoder.feed(chunk):
            room = limit - data.tell()
            data.write(piece[:room])
            if len(piece) > room:
                return ResponseBody(data.getvalue(), True, received)
            if len(piece) == _STEP_BYTES:
                await anyio.lowlevel.checkpoint()
        if received > limit + _OVERHEAD_BYTES:
            return ResponseBody(data.getvalue(), True, received)
    decoder.finish()
    return ResponseBody(data.getvalue(), False, received)


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
                    return  # padding after the last member
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
        """Raises ValueError if the body ended too soon. (The answer to a HEAD has an encoding, but no body.)"""
        if self._stream is not None and not self._stream.eof:
            raise ValueError("its compressed body ended too soon")


def _wbits(start: bytes) -> int:
    return zlib.MAX_WBITS if start and start[0] & 0x0F == 8 else -zlib.MAX_WBITS  # RFC 1950 section 2.2


def make_decoder(encoding: str) -> Plain | Inflate:
    """Return a decoder for a Content-Encoding. Raises ValueError for one that the request did not offer."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return Plain()
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflate(is_gzip=name != "deflate")
    raise ValueError(f"its body has an encoding that the request did not offer: {encoding[:50]!r}")
