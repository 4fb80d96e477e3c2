"""The one way this package writes JSON: the same value always gives the same bytes."""

from __future__ import annotations

import json
from typing import Any


def dumps(value: Any) -> str:
    """Compact JSON in one line. Keys keep their order: chat templates print them in it, so it is part of the prompt.

    What JSON does not know (a path, a date) is written as its text, for a log must not fail a task.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def encoded(value: Any) -> bytes:
    """`dumps` as UTF-8. Half a surrogate pair, which UTF-8 cannot hold, becomes its JSON escape."""
    return dumps(value).encode("utf-8", "backslashreplace")


def sendable(text: str) -> str:
    """The text without halves of surrogate pairs: tools do return them, and model servers refuse them."""
    return text.encode("utf-8", "replace").decode("utf-8")
