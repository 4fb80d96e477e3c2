"""Reads a call's arguments as the model wrote them: into an object, or the reason why that is impossible."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from toolhub_agent.types import Json, ToolCall


@dataclass(frozen=True, slots=True)
class ParseEnd:
    """The end of a turn's text.

    calls: those that only the end completed. problem: a call was begun and never completed, or there is a call's tag
    without a call. format_error: the turn has no call at all; MiroFlow rolls such a turn back and samples again.
    """

    calls: tuple[ToolCall, ...] = ()
    problem: str | None = None
    format_error: bool = False


# json_repair looks far ahead at every bracket. Beyond these bounds it takes many seconds, and the text is not a call.
_MAX_REPAIR_CHARS = 64_000
_MAX_REPAIR_DEPTH = 16
_BRACKET = re.compile(r"[\[\]{}]")
_KINDS: dict[type, str] = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def read_arguments(text: str) -> tuple[Json, str | None]:
    """Return (arguments, problem). With a problem the arguments are empty and the call must not run.

    An empty text is an empty object. Line breaks inside strings are accepted; other faults are repaired. Top-level
    nulls are left out, because servers have defaults for missing arguments.
    """
    if not text.strip():
        return {}, None
    try:
        value = _loaded(text)
    except ValueError as exc:
        return {}, f"the arguments are not valid JSON ({exc})"
    if not isinstance(value, dict):
        return {}, f"the arguments must be a JSON object, not {_KINDS.get(type(value), 'null')}"
    return {key: item for key, item in value.items() if item is not None}, None


# The first arguments of a call are short. Later ones are not looked for.
_MOST_PARTIAL_CHARS = 4_000
_QUOTE_OR_BACKSLASH = re.compile(r'["\\]')


def complete_arguments(text: str) -> Json:
    """Return the top-level arguments that are complete in the beginning of an object. The last one may still grow."""
    text = text[:_MOST_PARTIAL_CHARS]
    for end in reversed(_ends_of_values(text)):
        try:
            value = json.loads(f"{text[:end]}}}", strict=False, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue  # the end of a key, not of a value
        return value if isinstance(value, dict) else {}
    return {}


def _ends_of_values(text: str) -> list[int]:
    """Return the places where a value of the outermost object may end."""
    ends: list[int] = []
    depth, at = 0, 0
    while at < len(text):
        char = text[at]
        if char == '"':
            at = _end_of_string(text, at + 1)
            if at > len(text):
                break
            if depth == 1:
                ends.append(at)
            continue
        depth += (char in "[{") - (char in "]}")
        if depth == 1 and char in "]},":
            ends.append(at if char == "," else at + 1)
        at += 1
    return ends


def _end_of_string(text: str, at: int) -> int:
    """Return the place behind the closing quote; one behind the end of the text if it has none."""
    while (match := _QUOTE_OR_BACKSLASH.search(text, at)) is not None:
        if match[0] == '"':
            return match.end()
        at = match.end() + 1
    return len(text) + 1


def is_object(text: str, *, strict: bool) -> bool:
    """Whether the text is a JSON object as it stands. strict: line breaks inside strings are not accepted."""
    try:
        return isinstance(_parsed(text, strict=strict), dict)
    except ValueError:
        return False


def _loaded(text: str) -> Any:
    try:
        return _parsed(text, strict=False)
    except ValueError as exc:
        return _repaired(text, exc)


def _parsed(text: str, *, strict: bool) -> Any:
    try:
        return json.loads(text, strict=strict, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _repaired(text: str, fault: ValueError) -> Any:
    if len(text) > _MAX_REPAIR_CHARS or _depth(text) > _MAX_REPAIR_DEPTH:
        raise fault
    if isinstance(fault, json.JSONDecodeError) and fault.msg == "Extra data" and text[fault.pos] in "{[":
        raise ValueError("there is more than one object")  # the repair would choose one of them
    import json_repair  # imported here: most turns need no repair, and importing this package must be cheap

    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except RecursionError:
        raise fault from None
    if value == "":  # json_repair found nothing
        raise fault
    return value


def _depth(text: str) -> int:
    steps = (1 if match[0] in "[{" else -1 for match in _BRACKET.finditer(text))
    return max(accumulate(steps), default=0)
