"""A client's request, read: as much of it as the door has to know. Its bytes go on as they came, wherever they can."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from toolhub_agent.door.headers import Raw
from toolhub_agent.model import Json

# They shape the answer or belong to the one request alone; a prompt is the same without them.
_NOT_OF_PROMPTS = frozenset(
    {"messages", "stream", "stream_options", "response_format", "user", "metadata", "store", "priority", "request_id"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "kv_transfer_params", "prompt_logprobs"}
    | {"continue_final_message", "add_generation_prompt", "stop", "seed"}
)


class Unreadable(ValueError):
    """A body that is no JSON object; the message may be shown."""


@dataclass(frozen=True, slots=True)
class Asked:
    """path: below the endpoint, e.g. `/chat/completions`. raw: the body as it came, body: what it says."""

    path: str
    raw: bytes = b""
    body: Json = field(default_factory=dict)
    headers: tuple[Raw, ...] = ()
    query: bytes = b""

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        """Whether the client itself asks for the usage of a stream."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def messages(self) -> list[Json] | None:
        """Of a chat; None for everything else, and for what no engine would take."""
        messages = self.body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            return None
        return messages

    @property
    def has_one_answer(self) -> bool:
        """An answer that will stand in history as a message of its own."""
        return self.body.get("n") in (None, 1) and not self.body.get("continue_final_message")

    def prompt_body(self) -> Json:
        """The fields that may shape the prompt beside the messages."""
        return {name: value for name, value in self.body.items() if name not in _NOT_OF_PROMPTS}


def read_object(raw: bytes) -> Json:
    """Raises Unreadable."""
    try:
        body = _read(raw)
    except (ValueError, RecursionError):
        raise Unreadable("the body is not JSON") from None
    if not isinstance(body, dict):
        raise Unreadable("the body is not a JSON object")
    return body


def _read(raw: bytes) -> Any:
    try:
        return from_json(raw)
    except ValueError:
        return json.loads(raw)  # takes half a surrogate pair, which a model's text that was cut may end with


def with_fields(asked: Asked, wishes: Mapping[str, Any], *, with_usage: bool) -> bytes:
    """The body with more fields behind its own. wishes: where the client names the same, its word stands.

    with_usage: make the engine tell the usage of a stream whose client did not ask for it.
    """
    fresh = {name: value for name, value in wishes.items() if name not in asked.body}
    changed = {
        name: {**value, **asked.body[name]}
        for name, value in wishes.items()
        if isinstance(value, Mapping) and isinstance(asked.body.get(name), dict)
    }
    if with_usage and asked.is_stream and not asked.wants_usage:
        options = asked.body.get("stream_options")
        told = fresh if options is None and "stream_options" not in asked.body else changed
        # Without the second, usage could come with every chunk, which the client did not ask for either.
        kept = {**options, "continuous_usage_stats": False} if isinstance(options, dict) and options else {}
        told["stream_options"] = {**kept, "include_usage": True}
    if changed:
        return json.dumps({**asked.body, **changed, **fresh}, separators=(",", ":")).encode()
    return _spliced(asked, fresh) if fresh else asked.raw


def _spliced(asked: Asked, fresh: Json) -> bytes:
    """Before the last brace: the rest stays byte for byte, and is not written anew at every turn."""
    head = asked.raw.rstrip()[:-1].rstrip()
    return head + (b"," if asked.body else b"") + json.dumps(fresh, separators=(",", ":")).encode()[1:]
