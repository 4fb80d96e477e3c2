"""HTTP messages of the LLM proxy: which headers pass, how requests are read, and how answers are written."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json
from starlette.types import Send

from toolhub_agent.types import Json

# --- Headers ----------------------------------------------------------------------------------------------------------
# Which headers pass through the proxy, in both directions. Names are lower-case bytes, as in ASGI.

Header = tuple[bytes, bytes]

# The hop-by-hop headers of RFC 9110 section 7.6.1, and older ones.
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    | {b"proxy-authenticate", b"proxy-authorization"}
)
# A client's credentials are for the hub. The model servers get the configured ones. The proxy reads the body, so the
# engine must not compress it.
_NOT_TO_ENGINE = frozenset(
    {b"host", b"content-length", b"expect", b"accept-encoding", b"authorization", b"x-api-key", b"api-key"}
    | {b"cookie", b"origin", b"referer", b"openai-organization", b"openai-project", b"x-toolhub-task"}
)
# uvicorn writes its own date and server. Redirects and cookies of a model server must not reach the hub's clients.
_NOT_TO_CLIENT = frozenset({b"content-length", b"date", b"server", b"location", b"set-cookie"})


def headers_to_engine(given: Iterable[Header], *, configured: Collection[str]) -> list[Header]:
    """The headers of a client that a model server gets. configured: lower-case names that the config sets itself."""
    given = list(given)
    dropped = _HOP | _NOT_TO_ENGINE | _named_hops(given) | {name.encode("latin-1") for name in configured}
    return [(name, value) for name, value in given if name not in dropped]


def headers_to_client(given: Iterable[Header], *, secrets: Collection[str] = ()) -> list[Header]:
    """The headers of a model server that a client gets. A header that holds a secret is left out."""
    given = [(name.lower(), value) for name, value in given]
    dropped = _HOP | _NOT_TO_CLIENT | _named_hops(given)
    hidden = [secret.encode() for secret in secrets]
    return [
        (name, value) for name, value in given if name not in dropped and not any(secret in value for secret in hidden)
    ]


def header_text(given: Iterable[Header], name: bytes) -> str:
    """The first value of that name; "" if there is none."""
    return next((value.decode("latin-1").strip() for found, value in given if found == name), "")


def _named_hops(given: Iterable[Header]) -> set[bytes]:
    """The headers that `Connection` declares to be for this hop only."""
    return {part.strip().lower() for name, value in given if name == b"connection" for part in value.split(b",")}


# --- The client's request ---------------------------------------------------------------------------------------------
# A client's request, parsed as far as the proxy needs it. Wherever possible its bytes are forwarded unchanged.

# Fields that do not shape the prompt: they shape the answer or belong to one request alone.
_NOT_OF_THE_PROMPT = frozenset(
    {"messages", "stream", "stream_options", "response_format", "user", "metadata", "store", "priority", "request_id"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "kv_transfer_params", "prompt_logprobs"}
    | {"continue_final_message", "add_generation_prompt", "stop", "seed"}
)


class InvalidBody(ValueError):
    """A body that is not a JSON object. The message may be shown to the client."""


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A parsed request. path: below the endpoint, such as `/chat/completions`. raw: the body as it came."""

    path: str
    raw: bytes = b""
    body: Json = field(default_factory=dict)
    headers: tuple[Header, ...] = ()
    query: bytes = b""

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for the usage of a stream."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def messages(self) -> list[Json] | None:
        """The messages of a chat; None for other paths, and for messages that no engine would accept."""
        messages = self.body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            return None
        return messages

    @property
    def has_one_answer(self) -> bool:
        """Whether the answer will stand in history as one message."""
        return self.body.get("n") in (None, 1) and not self.body.get("continue_final_message")

    def prompt_body(self) -> Json:
        """The fields besides `messages` that may shape the prompt."""
        return {name: value for name, value in self.body.items() if name not in _NOT_OF_THE_PROMPT}


def read_object(raw: bytes) -> Json:
    """The JSON object in a body. Raises InvalidBody."""
    try:
        body = _parse_json(raw)
    except (ValueError, RecursionError):
        raise InvalidBody("the body is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidBody("the body is not a JSON object")
    return body


def _parse_json(raw: bytes) -> Any:
    try:
        return from_json(raw, cache_strings="keys")
    except ValueError:
        return json.loads(raw)  # the json module also accepts half a surrogate pair, which a cut-off text may end with


def inject_engine_fields(asked: ProxyRequest, fields: Mapping[str, Any], *, with_usage: bool) -> bytes:
    """The body with more fields after its own. Where the client set a field, the client's value stays.

    with_usage: make the engine send the usage of a stream whose client did not ask for it.
    """
    fresh = {name: value for name, value in fields.items() if name not in asked.body}
    changed = {
        name: {**value, **asked.body[name]}
        for name, value in fields.items()
        if isinstance(value, Mapping) and isinstance(asked.body.get(name), dict)
    }
    if with_usage and asked.is_stream and not asked.wants_usage:
        options = asked.body.get("stream_options")
        target = fresh if options is None and "stream_options" not in asked.body else changed
        # Without the second field the engine could send usage with every chunk, which the client did not ask for.
        kept = {**options, "continuous_usage_stats": False} if isinstance(options, dict) and options else {}
        target["stream_options"] = {**kept, "include_usage": True}
    if changed:
        return json.dumps({**asked.body, **changed, **fresh}, separators=(",", ":")).encode()
    return _spliced(asked, fresh) if fresh else asked.raw


def _spliced(asked: ProxyRequest, fresh: Json) -> bytes:
    """Insert the fields before the last brace. The rest stays byte for byte and is not serialised again."""
    head = asked.raw.rstrip()[:-1].rstrip()
    return head + (b"," if asked.body else b"") + json.dumps(fresh, separators=(",", ":")).encode()[1:]


# --- The answer to the client -----------------------------------------------------------------------------------------
# What the client gets: status and headers, bodies, and errors in OpenAI's format.

# nginx's status for a client that has disconnected. No client sees it.
CLIENT_CLOSED_REQUEST = 499
# When a client may try again: soon enough to find a free slot, late enough to avoid a storm of retries.
RETRY_AFTER_S = 5
_TYPES = {400: "invalid_request_error", 404: "not_found_error", 413: "invalid_request_error", 429: "rate_limit_error"}


class HTTPError(Exception):
    """The proxy itself answers with this error. The message is for the client."""

    def __init__(self, status: int, message: str, *, headers: Sequence[Header] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = tuple(headers)

    @classmethod
    def for_now(cls, status: int, message: str) -> HTTPError:
        return cls(status, message, headers=[(b"retry-after", str(RETRY_AFTER_S).encode())])


def error_body(status: int, message: str) -> bytes:
    error = {"message": message, "type": _TYPES.get(status, "toolhub_llm_proxy_error"), "param": None, "code": status}
    return to_json({"error": error})


class ClientResponse:
    """One answer. status: 0 until it began."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.is_complete = False

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def body(self, content: bytes, *, more: bool) -> None:
        self.is_complete = not more
        await self._send({"type": "http.response.body", "body": content, "more_body": more})

    async def whole(self, status: int, headers: Sequence[Header], content: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(content)).encode())])
        await self.body(content, more=False)

    async def refuse(self, refusal: HTTPError) -> None:
        headers = [(b"content-type", b"application/json"), *refusal.headers]
        await self.whole(refusal.status, headers, error_body(refusal.status, str(refusal)))

    async def break_off(self, status: int, message: str) -> None:
        """End a started stream with an error event that clients of this API recognise."""
        event = b"data: " + error_body(status, message) + b"\n\n"
        await self.body(event, more=False)
