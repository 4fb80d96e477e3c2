"""Reads the chunks of a streamed answer: each chunk into a piece, and all of them into one answer at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolhub_agent.errors import AnswerUnreadable
from toolhub_agent.llm.errors import AttemptFailed
from toolhub_agent.tool_calls.native_calls import NativeCallAssembler
from toolhub_agent.types import Delta, Json, Usage

# --- Token counts -----------------------------------------------------------------------------------------------------


def usage_of(usage: Mapping[str, Any], chunk: Mapping[str, Any] | None = None) -> Usage:
    """Read a `usage` object. chunk: the whole answer or chunk; some servers report cached tokens there."""
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens", usage.get("input_tokens"))) or 0,
        completion_tokens=_count(usage.get("completion_tokens", usage.get("output_tokens"))) or 0,
        cached_tokens=_cached(usage, chunk or {}),
    )


def _cached(usage: Mapping[str, Any], chunk: Mapping[str, Any]) -> int | None:
    places = (
        _field(usage.get("prompt_tokens_details"), "cached_tokens"),  # OpenAI, vLLM, SGLang with --enable-cache-report
        _field(usage.get("input_tokens_details"), "cached_tokens"),  # the Responses API's name
        usage.get("cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),  # DeepSeek
        usage.get("cache_read_input_tokens"),  # Anthropic's
        _field(_field(chunk.get("sglext"), "cached_tokens_details"), "device"),  # SGLang, return_cached_tokens_details
        _field(chunk.get("timings"), "cache_n"),  # llama.cpp
    )
    return next((count for place in places if (count := _count(place)) is not None), None)


def _field(outer: Any, key: str) -> Any:
    return outer.get(key) if isinstance(outer, Mapping) else None


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return int(value) if is_count else None


# --- Endless repetition -----------------------------------------------------------------------------------------------
# Detects a model that repeats itself without end, while it still writes. The rule is MiroFlow's: the text's last 50
# characters occur more than 5 times in it.


TAIL_CHARS, MAX_REPEATS = 50, 5
# The text is checked each time it has grown by so many characters. The rule must hold in that many checks in a row:
# a ruler in a table or a page of dots is no reason to stop the model.
CHECK_EVERY_CHARS, CHECKS_IN_A_ROW = 512, 4
# Only the end of the text is searched. A longer loop ends at max_tokens.
WINDOW_CHARS = 65_536
# Several calls of one turn may end in the same way.
CALL_END = "</use_mcp_tool>"


def is_repeated(text: str) -> bool:
    """The rule for a complete text."""
    tail = text[-TAIL_CHARS:]
    return len(tail) == TAIL_CHARS and not text.rstrip().endswith(CALL_END) and text.count(tail) > MAX_REPEATS


class RepetitionGuard:
    """The rule for a text that grows."""

    def __init__(self) -> None:
        self._end = ""
        self._fresh = 0
        self._parts: list[str] = []
        self._streak = 0

    def feed(self, piece: str) -> bool:
        """Add a piece; return True once the text only repeats itself."""
        self._parts.append(piece)
        self._fresh += len(piece)
        if self._fresh < CHECK_EVERY_CHARS:
            return False
        self._end = (self._end + "".join(self._parts))[-WINDOW_CHARS:]
        self._parts.clear()
        self._fresh = 0
        self._streak = self._streak + 1 if is_repeated(self._end) else 0
        return self._streak >= CHECKS_IN_A_ROW


# --- The answer -------------------------------------------------------------------------------------------------------


FINISHED = frozenset({"stop", "length", "tool_calls"})
# No model writes this many characters or calls in a turn. A broken server might.
MAX_ANSWER_CHARS = 16 << 20
MAX_CALLS = 1024


class AnswerAccumulator:
    """Reads the chunks of one stream, as plain objects, in order.

    Dynamo reports a complete call with a chunk of its own: ``{"choice_index", "tool_call"}``.
    """

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.finish_reason: str | None = None
        self.usage = Usage()
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._calls = NativeCallAssembler()
        self._size = 0
        self._guards = (RepetitionGuard(), RepetitionGuard())

    def __repr__(self) -> str:
        state = self.finish_reason or "unfinished"
        return f"<AnswerAccumulator {self._size} characters, {len(self._calls.drafts)} calls, {state}>"

    def feed(self, chunk: Any) -> Delta | None:
        """Return what a chunk adds; None if it adds nothing.

        Raises AttemptFailed for a malformed chunk, AnswerUnreadable for an answer that repeats itself or never ends.
        """
        if not isinstance(chunk, dict):
            raise _malformed("a chunk is not an object")
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage_of(usage, chunk)
        if isinstance(call := chunk.get("tool_call"), dict) and "choices" not in chunk:
            return Delta(dispatched=call)
        choice = _choice(chunk)
        if choice is None:
            return None
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return self._read(choice.get("delta") or {})

    def finish(self) -> None:
        """Settle `text` and `reasoning` after the stream ended.

        Raises AttemptFailed if the answer is not finished, AnswerUnreadable if it ended in an unusable way.
        """
        if self.finish_reason is None:
            raise _malformed("the stream ended before the answer did")
        if self.finish_reason not in FINISHED:
            raise AnswerUnreadable(f"the answer ended with {self.finish_reason!r:.60}")
        self.text, self.reasoning = "".join(self._texts), "".join(self._reasonings)
        if is_repeated(self.text):
            raise AnswerUnreadable("the answer repeats itself")

    def calls(self) -> tuple[Json, ...]:
        """The native tool calls, with their arguments as written."""
        return self._calls.calls()

    def _read(self, delta: Any) -> Delta | None:
        if not isinstance(delta, dict):
            raise _malformed("a delta is not an object")
        text = _text(delta.get("content"))
        reasoning = _text(delta.get("reasoning_content") or delta.get("reasoning"))
        tools = delta.get("tool_calls") or ()
        if not (text or reasoning or tools):
            return None
        self._grow(text, self._texts, self._guards[0])
        self._grow(reasoning, self._reasonings, self._guards[1])
        if not isinstance(tools, list | tuple):
            raise _malformed("the tool calls are not a list")
        for call in tools:
            self._add_call(call)
        return Delta(text=text, reasoning=reasoning, tool_calls=tuple(tools))

    def _grow(self, piece: str, parts: list[str], guard: RepetitionGuard) -> None:
        if not piece:
            return
        parts.append(piece)
        self._size += len(piece)
        if self._size > MAX_ANSWER_CHARS:
            raise AnswerUnreadable(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
        if guard.feed(piece):
            raise AnswerUnreadable("the answer repeats itself without end")

    def _add_call(self, call: Any) -> None:
        function = call.get("function") or {} if isinstance(call, dict) else None
        if not isinstance(function, dict) or not _is_index(call.get("index")):
            raise _malformed("a tool call is not an object with a function and an index")
        _text(function.get("name"))
        self._calls.add(call)
        self._size += len(str(function.get("arguments") or ""))
        if self._size > MAX_ANSWER_CHARS:
            raise AnswerUnreadable(f"the answer is longer than {MAX_ANSWER_CHARS} characters")


def _is_index(value: Any) -> bool:
    """Whether a call may have this index. Some servers give none."""
    return value is None or (isinstance(value, int) and 0 <= value < MAX_CALLS)


def _choice(chunk: Mapping[str, Any]) -> Json | None:
    """The first choice; None in a chunk that holds only usage."""
    choices = chunk.get("choices")
    if choices is None or choices == []:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise _malformed("the choices of a chunk are not a list of objects")
    return choices[0] if choices[0].get("index", 0) == 0 else None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _malformed("a text field is not a string")
    return value


def _malformed(what: str) -> AttemptFailed:
    return AttemptFailed(f"not an answer of this API: {what}", is_endpoint_fault=False)
