"""Finds the calls in a streamed text: MiroFlow's XML.

A call is the tags in fixed order with nothing but white space between them; its arguments end at the first
`</arguments>` that `</use_mcp_tool>` follows, so a lone `</arguments>` inside a string does no harm. A call opens only
at top level: what stands inside `<think>` is thinking, also when it is never closed. A `</think>` that nothing opened
tells that the prompt's template had opened it: everything before was thinking, and calls found there are withdrawn.
"""

from __future__ import annotations

from enum import Enum, auto

from toolhub_agent.model import Json, ToolCall
from toolhub_agent.protocol.arguments import is_object, read_arguments
from toolhub_agent.protocol.reader import ParseEnd
from toolhub_agent.protocol.tags import TAGS, TagSplitter


class _Place(Enum):
    TEXT = auto()
    THINKING = auto()
    OPENED = auto()
    SERVER = auto()
    AFTER_SERVER = auto()
    TOOL = auto()
    AFTER_TOOL = auto()
    ARGUMENTS = auto()
    AFTER_ARGUMENTS = auto()


# Where a call's head goes on, and by which tag.
_HEAD = {
    _Place.OPENED: ("<server_name>", _Place.SERVER),
    _Place.SERVER: ("</server_name>", _Place.AFTER_SERVER),
    _Place.AFTER_SERVER: ("<tool_name>", _Place.TOOL),
    _Place.TOOL: ("</tool_name>", _Place.AFTER_TOOL),
    _Place.AFTER_TOOL: ("<arguments>", _Place.ARGUMENTS),
}
# Those of the format-error rule; a tool's name is no sign of a call.
_TELLTALE = TAGS - {"<think>", "</think>", "<tool_name>", "</tool_name>"}


class XmlReader:
    """One turn's text. Linear in its length, however it is split."""

    growing: int | None = None
    """A call in XML is complete once it is handed out."""

    def __init__(self) -> None:
        self._splitter = TagSplitter()
        self._place = _Place.TEXT
        self._has_thought = False
        self._server: list[str] = []
        self._tool: list[str] = []
        self._arguments: list[str] = []
        self._after: list[str] = []
        self._visible: list[str] = []
        self._closed: list[ToolCall] = []
        self._standing: list[int] = []
        self._withdrawn: list[int] = []
        self._next_index = 0
        self._stray = False
        self._broken: str | None = None

    def feed(self, text: str) -> list[ToolCall]:
        """The calls that this piece of text closes."""
        self._closed = []
        for piece in self._splitter.feed(text):
            self._step(piece)
        return self._closed

    def take_withdrawn(self) -> list[int]:
        """Indexes of handed-out calls that turned out to be thinking; each is told once."""
        withdrawn, self._withdrawn = self._withdrawn, []
        return withdrawn

    def visible(self) -> str:
        """The text so far without the thinking; calls stay as they were written."""
        return "".join(self._visible)

    def close(self) -> ParseEnd:
        for piece in self._splitter.close():
            self._step(piece)
        problem = self._broken
        if self._place not in (_Place.TEXT, _Place.THINKING):
            problem = "a call's </use_mcp_tool> is missing"
        if problem is None and self._stray and not self._standing:
            problem = "there is a tag of a call, but no call"
        return ParseEnd(problem=problem, format_error=problem is not None and not self._standing)

    def _step(self, piece: str) -> None:
        if self._place is _Place.THINKING:
            if piece == "</think>":
                self._place = _Place.TEXT
        elif self._place is _Place.TEXT:
            self._read_text(piece)
        else:
            self._visible.append(piece)
            self._read_call(piece)

    def _read_text(self, piece: str) -> None:
        if piece == "<think>":
            self._place, self._has_thought = _Place.THINKING, True
        elif piece == "</think>":
            self._withdraw_all()
        else:
            self._visible.append(piece)
            self._stray |= piece in _TELLTALE and piece != "<use_mcp_tool>"
            if piece == "<use_mcp_tool>":
                self._open()

    def _withdraw_all(self) -> None:
        if self._has_thought:
            return  # a second closing tag means nothing
        self._has_thought = True
        self._withdrawn += self._standing
        self._standing, self._visible = [], []
        self._stray, self._broken = False, None

    def _open(self) -> None:
        self._place = _Place.OPENED
        self._server, self._tool, self._arguments, self._after = [], [], [], []

    def _read_call(self, piece: str) -> None:
        if self._place is _Place.ARGUMENTS:
            self._read_arguments(piece)
        elif self._place is _Place.AFTER_ARGUMENTS:
            self._read_end(piece)
        else:
            self._read_head(piece)

    def _read_head(self, piece: str) -> None:
        tag, following = _HEAD[self._place]
        if piece == tag:
            self._place = following
        elif piece not in TAGS and self._place in (_Place.SERVER, _Place.TOOL):
            (self._server if self._place is _Place.SERVER else self._tool).append(piece)
        elif not piece.isspace():
            self._broken = f"{tag} expected in a call"
            self._place = _Place.TEXT
            self._visible.pop()
            self._read_text(piece)

    def _read_arguments(self, piece: str) -> None:
        if piece == "</arguments>":
            self._place, self._after = _Place.AFTER_ARGUMENTS, [piece]
        else:
            self._arguments.append(piece)

    def _read_end(self, piece: str) -> None:
        if piece == "</use_mcp_tool>":
            self._place = _Place.TEXT
            self._hand_out()
        elif piece.isspace():
            self._after.append(piece)
        else:
            self._arguments += self._after
            self._place = _Place.ARGUMENTS
            self._read_arguments(piece)

    def _hand_out(self) -> None:
        raw = "".join(self._arguments).strip()
        arguments, problem = _arguments_of(raw)
        server, tool = "".join(self._server).strip(), "".join(self._tool).strip()
        self._closed.append(ToolCall(self._next_index, server, tool, arguments, raw=raw, problem=problem))
        self._standing.append(self._next_index)
        self._next_index += 1


def _arguments_of(raw: str) -> tuple[Json, str | None]:
    if "<use_mcp_tool>" in raw and not is_object(raw, strict=False):
        # Two calls run into one: whatever a repair made of that, nobody asked for it.
        return {}, "the call was not closed before the next one began"
    return read_arguments(raw)


def strip_think(text: str) -> str:
    """The text without its thinking, by the rules above; also of a turn whose calls are native."""
    reader = XmlReader()
    reader.feed(text)
    reader.close()
    return reader.visible()
