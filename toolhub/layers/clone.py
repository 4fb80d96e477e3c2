"""Copies for several readers of one thing, so that what one does with it is no other's business."""

from __future__ import annotations

import sys
from typing import Any

from toolhub.model import Json

# A dict entry, an `Entry` and its key; small next to any answer worth keeping.
_OVERHEAD_BYTES = 300


def clone_json(raw: Json) -> Json:
    """Return a copy with containers of its own; texts, which nobody can change, are shared.

    A loop rather than a recursion, so that no answer is nested too deeply for it.
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
