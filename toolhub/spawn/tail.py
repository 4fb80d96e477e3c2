"""The last lines that a server wrote to stderr. They are shown when it fails."""

from __future__ import annotations

import os
from collections import deque

import anyio

LINES, LINE_CHARS = 50, 2000
# A server that floods stderr is read at no more than 64 KiB per 2 ms. It then blocks in its own write and does not slow
# down the hub.
_CHUNK_BYTES, _PAUSE_S, _BURST_BYTES = 65536, 0.002, 1 << 20


class StderrTail:
    """Reads a pipe until EOF and keeps its last lines."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._lines: deque[str] = deque(maxlen=LINES)
        self._partial = b""

    async def drain(self, fd: int) -> None:
        """Read `fd` (non-blocking) until EOF."""
        burst = 0
        while True:
            await anyio.wait_readable(fd)
            try:
                chunk = os.read(fd, _CHUNK_BYTES)
            except BlockingIOError:
                burst = 0
                continue
            if not chunk:
                return
            self.feed(chunk)
            burst = burst + len(chunk) if len(chunk) == _CHUNK_BYTES else 0
            if burst > _BURST_BYTES:
                await anyio.sleep(_PAUSE_S)

    def feed(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines[-LINES:]:
            self._keep(line)
        if len(self._partial) > _CHUNK_BYTES:  # one endless line must not grow without bound
            self._keep(self._partial)
            self._partial = b""

    def _keep(self, line: bytes) -> None:
        text = line[:LINE_CHARS].decode("utf-8", "replace").rstrip()
        if text:
            self._lines.append(text)

    def lines(self) -> list[str]:
        """Return the last lines, oldest first, with an unfinished one."""
        rest = self._partial[:LINE_CHARS].decode("utf-8", "replace").strip()
        return [*self._lines, rest] if rest else list(self._lines)
