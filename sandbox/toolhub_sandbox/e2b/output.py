"""Output of a program at E2B: the first bytes are kept, the rest is counted."""

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
    """A stream that ends with a mark: `mark`, the exit code, a newline.

    The stream itself stays open as long as a background process has it. Text after the mark is not the program's.
    """

    def __init__(self, limit: int, mark: str, on_end: Callable[[], None]) -> None:
        self.kept = CappedText(limit)
        self.exit_code: int | None = None
        self._mark = mark
        self._on_end = on_end
        self._tail = ""
        """Text that may be the beginning of the mark."""

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
        """End without a mark: keep the text that was held back."""
        if self.exit_code is None:
            self.kept.add(self._tail)
            self._tail = ""
