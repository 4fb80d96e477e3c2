"""Notices a model that repeats itself without end, while it still does (MiroFlow's rule: its last 50 characters occur
more than 5 times)."""

from __future__ import annotations

TAIL, MOST = 50, 5
# The text is looked at every so many characters, and by then the rule must have held for that many looks in a row:
# a table's ruler or a page of dots is no reason to stop a model that goes on.
STEP, STREAK = 512, 4
# Only so much of the end is looked through; a loop longer than that is left to max_tokens.
WINDOW = 65_536
# Calls of one turn may well end alike.
CALL_END = "</use_mcp_tool>"


def is_repeated(text: str) -> bool:
    """The rule for a text that ended."""
    tail = text[-TAIL:]
    return len(tail) == TAIL and not text.rstrip().endswith(CALL_END) and text.count(tail) > MOST


class RepetitionGuard:
    """The rule for a text that grows."""

    def __init__(self) -> None:
        self._end = ""
        self._fresh = 0
        self._parts: list[str] = []
        self._streak = 0

    def feed(self, piece: str) -> bool:
        """Add a piece; true once the text does nothing but repeat."""
        self._parts.append(piece)
        self._fresh += len(piece)
        if self._fresh < STEP:
            return False
        self._end = (self._end + "".join(self._parts))[-WINDOW:]
        self._parts.clear()
        self._fresh = 0
        self._streak = self._streak + 1 if is_repeated(self._end) else 0
        return self._streak >= STREAK
