"""What a program printed: the first bytes are kept, the rest is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class CappedText:
    """Text of at most `limit` bytes of UTF-8."""

    limit: int
    dropped_bytes: int = 0
    _kept: bytearray = field(default_factory=bytearray)

    def add(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        room = max(0, self.limit - len(self._kept))
        self._kept += data[:room]
        self.dropped_bytes += len(data) - min(room, len(data))

    @property
    def text(self) -> str:
        """What was kept; a character that the limit cuts in two is left out."""
        return self._kept.decode("utf-8", "ignore")


class MarkedStream:
    """A stream whose writer says where it ends: `mark`, its exit code, a newline.

    The stream itself stays open while anything that the program left in the background holds it. What comes after
    the mark is not the program's.
    """

    def __init__(self, limit: int, mark: str, on_end: Callable[[], None]) -> None:
        self.kept = CappedText(limit)
        self.exit_code: int | None = None
        self._mark = mark
        self._on_end = on_end
        self._tail = ""
        """Not yet told apart from the beginning of a mark."""

    def feed(self, text: str) -> None:
        if self.exit_code is not None:
            return
        before, mark, after = (self._tail + text).partition(self._mark)
        if not mark:
            held = min(len(before), len(self._mark) - 1)
            self.kept.add(before[: len(before) - held])
            self._tail = before[len(before) - held :]
            return
        self.kept.add(before)
        self._tail = mark + after
        code, newline, _ = after.partition("\n")
        if newline:
            self._tail = ""
            self.exit_code = int(code)
            self._on_end()

    def close(self) -> None:
        """Keep what was held back; there was no mark."""
        if self.exit_code is None:
            self.kept.add(self._tail)
            self._tail = ""
