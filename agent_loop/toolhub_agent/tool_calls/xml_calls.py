"""Finds calls in a streamed text: MiroFlow's XML.

A call is its tags in fixed order with only white space between them. Its arguments end at the first `</arguments>`
that is followed by `</use_mcp_tool>`, so a lone `</arguments>` inside a string does no harm. A call opens only at top
level: text inside `<think>` is thinking, also when it is never closed. A `</think>` without an opening tag means that
the prompt's template had opened it: everything before was thinking, and calls found there are withdrawn.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from toolhub_agent.tool_calls.arguments import ParseEnd, is_object, read_arguments
from toolhub_agent.types import Json, ToolCall

# --- Tags -------------------------------------------------------------------------------------------------------------
# Splits streamed text at the protocol's tags, however the stream is split.

_NAMES = ("use_mcp_tool", "server_name", "tool_name", "arguments", "think")
TAGS = frozenset(f"<{slash}{name}>" for name in _NAMES for slash in ("", "/"))
_TAG = re.compile("|".join(sorted(TAGS)))
_LONGEST = max(map(len, TAGS))


class TagSplitter:
    """Linear: it looks again only at text that may be the beginning of a tag."""

    def __init__(self) -> None:
        self._tail = ""

    def feed(self, text: str) -> list[str]:
        """The pieces that are certain by now. A piece is a whole tag (one of `TAGS`) or text without tags."""
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
        """The text that was held back because it could have become a tag."""
        tail, self._tail = self._tail, ""
        return [tail] if tail else []


def _begin_of_unfinished_tag(text: str, start: int) -> int:
    at = text.rfind("<", max(start, len(text) - _LONGEST + 1))
    if at >= 0 and any(tag.startswith(text[at:]) for tag in TAGS):
        return at
    return len(text)


# --- Calls ------------------------------------------------------------------------------------------------------------


class _State(Enum):
    TEXT = auto()
    THINKING = auto()
    OPENED = auto()
    SERVER = auto()
    AFTER_SERVER = auto()
    TOOL = auto()
    AFTER_TOOL = auto()
    ARGUMENTS = auto()
    AFTER_ARGUMENTS = auto()


# The tags of a call's head, in order.
_HEAD = {
    _State.OPENED: ("<server_name>", _State.SERVER),
    _State.SERVER: ("</server_name>", _State.AFTER_SERVER),
    _State.AFTER_SERVER: ("<tool_name>", _State.TOOL),
    _State.TOOL: ("</tool_name>", _State.AFTER_TOOL),
    _State.AFTER_TOOL: ("<arguments>", _State.ARGUMENTS),
}
# Tags that count as a sign of a call in the format-error rule. A tool's name is no such sign.
_TELLTALE = TAGS - {"<think>", "</think>", "<tool_name>", "</tool_name>"}


class XmlCallReader:
    """The calls in one turn's text. Linear in its length, however it is split."""

    growing: int | None = None
    """Always None: a call in XML is complete when it is returned."""

    def __init__(self) -> None:
        self._splitter = TagSplitter()
        self._place = _State.TEXT
        self._has_thought = False
        self._server: list[str] = []
        self._tool: list[str] = []
        self._arguments: list[str] = []
        self._after: list[str] = []
        self._closed: list[ToolCall] = []
        self._standing: list[int] = []
        self._withdrawn: list[int] = []
        self._next_index = 0
        self._stray = False
        self._broken: str | None = None

    @property
    def unfinished(self) -> tuple[int, str, str, str] | None:
        """(index, server, tool, arguments so far) of the call that is being written."""
        if self._place is not _State.ARGUMENTS:
            return None
        server, tool = "".join(self._server).strip(), "".join(self._tool).strip()
        return self._next_index, server, tool, "".join(self._arguments)

    def feed(self, text: str) -> list[ToolCall]:
        """The calls that this piece of text closes."""
        self._closed = []
        for piece in self._splitter.feed(text):
            self._step(piece)
        return self._closed

    def take_withdrawn(self) -> list[int]:
        """Indexes of returned calls that turned out to be thinking, each once."""
        withdrawn, self._withdrawn = self._withdrawn, []
        return withdrawn

    def close(self) -> ParseEnd:
        for piece in self._splitter.close():
            self._step(piece)
        problem = self._broken
        if self._place not in (_State.TEXT, _State.THINKING):
            problem = "a call's </use_mcp_tool> is missing"
        if problem is None and self._stray and not self._standing:
            problem = "the text has a tag of a tool call, but no tool call"
        return ParseEnd(problem=problem, format_error=problem is not None and not self._standing)

    def _step(self, piece: str) -> None:
        if self._place is _State.THINKING:
            if piece == "</think>":
                self._place = _State.TEXT
        elif self._place is _State.TEXT:
            self._read_text(piece)
        else:
            self._read_call(piece)

    def _read_text(self, piece: str) -> None:
        if piece == "<think>":
            self._place, self._has_thought = _State.THINKING, True
        elif piece == "</think>":
            self._withdraw_all()
        else:
            self._stray |= piece in _TELLTALE and piece != "<use_mcp_tool>"
            if piece == "<use_mcp_tool>":
                self._open()

    def _withdraw_all(self) -> None:
        if self._has_thought:
            return  # a second closing tag has no effect
        self._has_thought = True
        self._withdrawn += self._standing
        self._standing = []
        self._stray, self._broken = False, None

    def _open(self) -> None:
        self._place = _State.OPENED
        self._server, self._tool, self._arguments, self._after = [], [], [], []

    def _read_call(self, piece: str) -> None:
        if self._place is _State.ARGUMENTS:
            self._read_arguments(piece)
        elif self._place is _State.AFTER_ARGUMENTS:
            self._read_end(piece)
        else:
            self._read_head(piece)

    def _read_head(self, piece: str) -> None:
        tag, following = _HEAD[self._place]
        if piece == tag:
            self._place = following
        elif piece not in TAGS and self._place in (_State.SERVER, _State.TOOL):
            (self._server if self._place is _State.SERVER else self._tool).append(piece)
        elif not piece.isspace():
            self._broken = f"{tag} expected in a call"
            self._place = _State.TEXT
            self._read_text(piece)

    def _read_arguments(self, piece: str) -> None:
        if piece == "</arguments>":
            self._place, self._after = _State.AFTER_ARGUMENTS, [piece]
        else:
            self._arguments.append(piece)

    def _read_end(self, piece: str) -> None:
        if piece == "</use_mcp_tool>":
            self._place = _State.TEXT
            self._hand_out()
        elif piece.isspace():
            self._after.append(piece)
        else:
            self._arguments += self._after
            self._place = _State.ARGUMENTS
            self._read_arguments(piece)

    def _hand_out(self) -> None:
        raw = "".join(self._arguments).strip()
        arguments, problem = _read_arguments(raw)
        server, tool = "".join(self._server).strip(), "".join(self._tool).strip()
        self._closed.append(ToolCall(self._next_index, server, tool, arguments, raw=raw, problem=problem))
        self._standing.append(self._next_index)
        self._next_index += 1


def _read_arguments(raw: str) -> tuple[Json, str | None]:
    if "<use_mcp_tool>" in raw and not is_object(raw, strict=False):
        # The end tag is missing, so two calls were read as one. A repair would invent arguments.
        return {}, "the call was not closed before the next one began"
    return read_arguments(raw)
