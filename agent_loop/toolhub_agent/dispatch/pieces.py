"""Whatever a stream gives -> `Delta`: plain text, our own deltas, chunks of the `openai` SDK or their deltas."""

from __future__ import annotations

from typing import Any

from toolhub_agent.model import Delta, Json

_NOTHING = Delta()


def as_delta(piece: Any) -> Delta:
    """Only the first choice is read; what has neither text nor calls is an empty delta."""
    if isinstance(piece, Delta):
        return piece
    if isinstance(piece, str):
        return Delta(text=piece)
    if hasattr(piece, "choices"):
        first = next((choice for choice in piece.choices or () if not choice.index), None)
        return _NOTHING if first is None or first.delta is None else as_delta(first.delta)
    calls = getattr(piece, "tool_calls", None) or ()
    return Delta(text=getattr(piece, "content", None) or "", tool_calls=tuple(map(_call, calls)))


def _call(call: Any) -> Json:
    function = call.function
    return {
        "index": call.index,
        "id": call.id,
        "function": {"name": function.name, "arguments": function.arguments} if function is not None else {},
    }
