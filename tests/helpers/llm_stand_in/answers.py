"""What the stand-in says to one request, faults included."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Json = dict[str, Any]
# Clients refuse a tool call whose id another one of the conversation has.
_numbers = itertools.count()


class Fault(Enum):
    """How a stream ends after `Answer.after` pieces."""

    CUT = "the connection breaks"
    MALFORMED = "an event whose data is no JSON"
    UNFINISHED = "the stream ends in order, without a finish reason"
    ERROR = "an event with an error object (`Answer.error`)"


@dataclass(frozen=True)
class Answer:
    """pieces: the text's deltas. status other than 200: `error` is the body. tool_calls: (function name, arguments).

    hold: wait for `ModelServer.release()` after `after` pieces (0: before the first byte of the body).
    fault: what happens after `after` pieces. events: more SSE lines, as they are, before the first piece.
    usage: instead of the counted one. raw: this as the whole body, with `content_type`.
    """

    pieces: tuple[str, ...] = ("ok",)
    reasoning: str = ""
    tool_calls: tuple[tuple[str, Json | str], ...] = ()
    finish_reason: str | None = None
    status: int = 200
    error: Json | str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: bool = False
    fault: Fault | None = None
    after: int = 0
    events: tuple[str, ...] = ()
    usage: Json | None = None
    raw: str | None = None
    content_type: str = "application/json"
    number: int = field(default_factory=_numbers.__next__, compare=False)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def ending(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")

    def deltas(self) -> list[Json]:
        """The streamed choices' deltas in order; a tool call's arguments come in two halves."""
        out: list[Json] = [{"reasoning_content": self.reasoning}] if self.reasoning else []
        out += [{"content": piece} for piece in self.pieces if piece]
        for index, (name, arguments) in enumerate(self.tool_calls):
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            half = len(written) // 2
            head = {"index": index, "id": f"call_{self.number}_{index}", "type": "function"}
            out.append({"tool_calls": [{**head, "function": {"name": name, "arguments": written[:half]}}]})
            out.append({"tool_calls": [{"index": index, "function": {"arguments": written[half:]}}]})
        return out

    def message(self) -> Json:
        """As an answer that is not streamed has it."""
        calls = [
            {
                "id": f"call_{self.number}_{index}",
                "type": "function",
                "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
            }
            for index, (name, args) in enumerate(self.tool_calls)
        ]
        more = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {"role": "assistant", "content": self.text or None, **more, **({"tool_calls": calls} if calls else {})}


def said(*pieces: str, **more: Any) -> Answer:
    return Answer(pieces=pieces, **more)


def called(*calls: tuple[str, Json | str], text: str = "", **more: Any) -> Answer:
    """An answer with native tool calls: (function name, arguments) each."""
    return Answer(pieces=(text,) if text else (), tool_calls=calls, **more)


def failed(status: int, message: str = "not now", *, retry_after: str | None = None, **error: Any) -> Answer:
    """An error as vLLM and OpenAI write it."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    body = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status, **error}}
    return Answer(status=status, error=body, headers=headers)


def cut(*pieces: str, after: int = 1) -> Answer:
    return Answer(pieces=pieces or ("one ", "two "), fault=Fault.CUT, after=after)


def stalled(*pieces: str, after: int = 1) -> Answer:
    """Goes on only when the server is told to `release()`."""
    return Answer(pieces=pieces or ("one ", "two "), hold=True, after=after)
