"""Copies of JSON values and errors for several readers, so that no reader can change another's."""

from __future__ import annotations

import sys
from typing import Any

from toolhub.model import Json

# A dict entry, an `Entry` and its key; small next to any answer worth keeping.
_OVERHEAD_BYTES = 300


def clone_json(raw: Json) -> Json:
    """Return a deep copy of a JSON object. Strings are shared, since they cannot be changed.

    A loop instead of a recursion, so that no answer is nested too deeply.
    """
    top = raw.copy()
    pending: list[Any] = [top]
    while pending:
        node = pending.pop()
        for place, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                node[place] = twin = value.copy()
                pending.append(twin)
    return top


def size_of(raw: Json) -> int:
    """Return the bytes of memory that keeping a JSON value costs, to within a few percent."""
    size = _OVERHEAD_BYTES
    pending: list[Any] = [raw]
    while pending:
        node = pending.pop()
        size += sys.getsizeof(node)
        if isinstance(node, dict):
            pending.extend(node)
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return size


def clone_error(error: Exception) -> Exception:
    """Return a copy to raise elsewhere: one object raised in 50 tasks would grow one traceback without end."""
    twin = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    twin.args = error.args
    twin.__cause__ = error
    return twin
