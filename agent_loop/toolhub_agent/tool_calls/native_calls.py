"""Assembles native tool calls from the deltas of the chat completions API.

The API does not say when a call is complete. A call is returned as soon as its arguments are one whole JSON object. It
is *sealed* when a later call begins or the stream ends. If more text follows nevertheless, the call is withdrawn and
returned again at the end, with all of its text. Arguments that never became an object are returned at the end, too.

Servers differ. The index may be missing or always 0. The id may be missing or change with every delta. The name may be
repeated or come in pieces. The arguments may be an object instead of its text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from toolhub_agent.tool_calls.arguments import ParseEnd, is_object, read_arguments
from toolhub_agent.types import Json, ToolCall

# --- Where a JSON object ends -----------------------------------------------------------------------------------------
# Detects when a streamed JSON object is complete.

_OUTSIDE = re.compile(r'["\[\]{}]')
_INSIDE = re.compile(r'["\\]')


class JsonObjectScanner:
    """Follows strings and brackets only, and looks at each character once. It does not check that the text is JSON.

    is_closed: the first object is complete. has_more: after it comes something other than white space, or the text does
    not begin with an object.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self.has_more = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text) and not self.has_more:
            if self._depth == 0:
                at = self._read_around(text, at)
            elif self._in_string:
                at = self._read_string(text, at)
            else:
                at = self._read_inside(text, at)

    def _read_around(self, text: str, at: int) -> int:
        rest = text[at:].lstrip()
        if rest and (self.is_closed or rest[0] != "{"):
            self.has_more = True
        elif rest:
            self._depth = 1
        return len(text) - len(rest) + 1 if rest else len(text)

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _INSIDE.search(text, at)
        if match is None:
            return len(text)
        self._escaped = match[0] == "\\"
        self._in_string = self._escaped
        return match.end()

    def _read_inside(self, text: str, at: int) -> int:
        match = _OUTSIDE.search(text, at)
        if match is None:
            return len(text)
        if match[0] == '"':
            self._in_string = True
        else:
            self._depth += 1 if match[0] in "[{" else -1
            self.is_closed = self._depth == 0
        return match.end()


# --- Calls ------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class CallDraft:
    """A call that is being assembled. is_final: the server declared it complete."""

    position: int
    given_id: str
    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    scan: JsonObjectScanner = field(default_factory=JsonObjectScanner)
    is_handed_out: bool = False
    is_final: bool = False

    @property
    def raw(self) -> str:
        return "".join(self.pieces)

    def add(self, delta: Json) -> None:
        function = _function(delta)
        name, arguments = _text(function.get("name")), function.get("arguments")
        if not self.pieces and name != self.name:
            self.name += name
        if text := json.dumps(arguments) if isinstance(arguments, dict) else _text(arguments):
            self.pieces.append(text)
            self.scan.feed(text)

    def as_call(self, arguments: str) -> Json:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}

    def is_whole(self) -> bool:
        return bool(self.name) and not self.scan.has_more and is_object(self.raw, strict=False)


class NativeCallAssembler:
    """Assigns each delta to its call. Every call gets an id."""

    def __init__(self) -> None:
        self.drafts: list[CallDraft] = []
        self._by_index: dict[int, CallDraft] = {}
        self._ids: set[str] = set()

    def add(self, delta: Json) -> None:
        self.draft_of(delta).add(delta)

    def at_index(self, index: object) -> CallDraft | None:
        return self._by_index.get(index) if isinstance(index, int) else None

    def calls(self) -> tuple[Json, ...]:
        """The calls as the API has them, with their arguments as written."""
        return tuple(draft.as_call(draft.raw) for draft in self.drafts)

    def draft_of(self, delta: Json) -> CallDraft:
        """The call that a delta belongs to; a new one if it begins a call."""
        index, given = delta.get("index"), _text(delta.get("id"))
        known = self.at_index(index) if isinstance(index, int) else self._last(given)
        if known is None or _is_another(known, given, delta):
            known = self._new_draft(given)
        if isinstance(index, int):
            self._by_index[index] = known
        return known

    def _last(self, given: str) -> CallDraft | None:
        """For a delta without an index: the call with that id, else the call that is being written."""
        if given:
            return next((draft for draft in self.drafts if draft.given_id == given), None)
        return self.drafts[-1] if self.drafts else None

    def _new_draft(self, given: str) -> CallDraft:
        unique = given if given and given not in self._ids else f"call_{uuid.uuid4().hex[:24]}"
        self._ids.add(unique)
        draft = CallDraft(len(self.drafts), given, unique)
        self.drafts.append(draft)
        return draft


class NativeCallReader:
    """Returns the calls of one turn as soon as they are complete. split: a function's name -> (server, tool)."""

    def __init__(self, split: Callable[[str], tuple[str, str]]) -> None:
        self._split = split
        self._assembler = NativeCallAssembler()
        self._withdrawn: list[int] = []

    @property
    def growing(self) -> int | None:
        """Index of the call that was returned and is not sealed yet."""
        last = self._assembler.drafts[-1] if self._assembler.drafts else None
        return last.position if last and last.is_handed_out and not last.is_final else None

    @property
    def unfinished(self) -> tuple[int, str, str, str] | None:
        """(index, server, tool, arguments so far) of the call that is being written."""
        last = self._assembler.drafts[-1] if self._assembler.drafts else None
        return None if last is None or last.is_handed_out else (last.position, *self._split(last.name), last.raw)

    def feed(self, deltas: tuple[Json, ...]) -> list[ToolCall]:
        """The calls whose arguments became one whole object with these deltas."""
        return [call for delta in deltas if (call := self._take(delta)) is not None]

    def dispatched(self, event: Json) -> list[ToolCall]:
        """Read a call that the server declares complete. Return it if it is new. Later deltas of it are repeats."""
        if event.get("choice_index"):
            return []
        delta = event.get("tool_call", event)
        draft = self._assembler.at_index(delta.get("index")) or self._assembler.draft_of(delta)
        if draft.is_handed_out:
            draft.is_final = True
            return []
        draft.name, draft.pieces, draft.scan, draft.is_final = "", [], JsonObjectScanner(), True
        draft.add(delta)
        return [self._hand_out(draft)]

    def take_withdrawn(self) -> list[int]:
        """Indexes of calls that were returned too soon, each once. They are returned again at the end."""
        withdrawn, self._withdrawn = self._withdrawn, []
        return withdrawn

    def close(self) -> ParseEnd:
        """End the stream. Unreadable arguments are a problem of their call, not of the turn."""
        return ParseEnd(tuple(self._hand_out(draft) for draft in self._assembler.drafts if not draft.is_handed_out))

    def calls(self) -> tuple[Json, ...]:
        """The calls as they go into history: arguments as written, unless no chat template could parse them."""
        return tuple(draft.as_call(_as_json_text(draft.raw)) for draft in self._assembler.drafts)

    def _take(self, delta: Json) -> ToolCall | None:
        draft = self._assembler.draft_of(delta)
        if draft.is_final:
            return None
        was_closed = draft.scan.is_closed
        draft.add(delta)
        if draft.is_handed_out and draft.scan.has_more:
            draft.is_handed_out = False
            self._withdrawn.append(draft.position)
        elif draft.scan.is_closed and not was_closed and draft.is_whole():
            return self._hand_out(draft)
        return None

    def _hand_out(self, draft: CallDraft) -> ToolCall:
        draft.is_handed_out = True
        server, tool = self._split(draft.name)
        raw = draft.raw
        arguments, problem = ({}, _CUT_OFF) if _is_cut_off(draft, raw) else read_arguments(raw)
        return ToolCall(draft.position, server, tool, arguments, id=draft.id, raw=raw, problem=problem)


_CUT_OFF = "the arguments end before their object is closed"


def _is_cut_off(draft: CallDraft, raw: str) -> bool:
    """Whether the arguments end too early. Half a command must not be repaired into a whole one."""
    return bool(raw.strip()) and not (draft.scan.is_closed or draft.scan.has_more) and not raw.rstrip().endswith("}")


def _is_another(known: CallDraft, given: str, delta: Json) -> bool:
    """Whether a delta with a known index begins another call: some servers send whole calls, all with index 0."""
    return (
        not known.is_final
        and known.scan.is_closed
        and bool(given)
        and given != known.given_id
        and bool(_function(delta).get("name"))
    )


def _function(delta: Json) -> Json:
    function = delta.get("function")
    return function if isinstance(function, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_json_text(raw: str) -> str:
    return raw if is_object(raw, strict=True) else json.dumps(read_arguments(raw)[0])
