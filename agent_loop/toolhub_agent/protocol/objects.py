"""Tells when a streamed JSON object has closed."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r'["\[\]{}]')
_INSIDE = re.compile(r'["\\]')


class ObjectScan:
    """Follows strings and brackets only, so that each character is looked at once; whether it is JSON is not asked.

    is_closed: the first object is complete. has_more: something other than white space stands after it, or the text
    does not begin with an object.
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
