"""Cuts streamed text at the protocol's tags, wherever the stream happens to be split."""

from __future__ import annotations

import re

_NAMES = ("use_mcp_tool", "server_name", "tool_name", "arguments", "think")
TAGS = frozenset(f"<{slash}{name}>" for name in _NAMES for slash in ("", "/"))
_TAG = re.compile("|".join(sorted(TAGS)))
_LONGEST = max(map(len, TAGS))


class TagSplitter:
    """Linear: of what was fed, only the beginning of a tag is ever looked at again."""

    def __init__(self) -> None:
        self._tail = ""

    def feed(self, text: str) -> list[str]:
        """The pieces that are certain by now; a piece is a whole tag (one of `TAGS`) or text without any."""
        text = self._tail + text
        pieces: list[str] = []
        start = 0
        for match in _TAG.finditer(text):
            pieces += (text[start : match.start()], match[0])
            start = match.end()
        cut = _begin_of_unfinished_tag(text, start)
        pieces.append(text[start:cut])
        self._tail = text[cut:]
        return [piece for piece in pieces if piece]

    def close(self) -> list[str]:
        """What was kept because it could have become a tag."""
        tail, self._tail = self._tail, ""
        return [tail] if tail else []


def _begin_of_unfinished_tag(text: str, start: int) -> int:
    at = text.rfind("<", max(start, len(text) - _LONGEST + 1))
    if at >= 0 and any(tag.startswith(text[at:]) for tag in TAGS):
        return at
    return len(text)
