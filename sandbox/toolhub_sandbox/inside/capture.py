"""Reading a pipe into bounded memory."""

from __future__ import annotations

import os

# As much as a pipe holds by default.
_PIPE_BYTES = 64 << 10


class Capture:
    """One stream of a program: keeps the first `limit` bytes, counts the rest, and never lets the program wait."""

    def __init__(self, limit: int) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.dropped = 0
        self.has_ended = False
        self._limit = limit
        self._kept = bytearray()

    def read(self) -> bool:
        """Take what is there, at most a pipe full; return False at the end of the stream."""
        try:
            data = os.read(self.reader, _PIPE_BYTES)
        except BlockingIOError:
            return True
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        self.dropped += max(0, len(data) - room)
        self.has_ended = not data
        return bool(data)

    def drain(self) -> None:
        """Take what was written before now: no more than the pipe can hold, however fast others write."""
        before = -1
        for _ in range(4):
            size = len(self._kept) + self.dropped
            if size == before:
                break
            before = size
            self.read()

    def take(self) -> tuple[bytes, int]:
        """Return what was kept and how many bytes were dropped since the last time."""
        kept, dropped = bytes(self._kept), self.dropped
        self._kept.clear()
        self.dropped = 0
        return kept, dropped

    def close_writer(self) -> None:
        os.close(self.writer)

    def close(self) -> None:
        os.close(self.reader)
