"""Requests to one model server: session headers, JSON requests, streamed chunks, and failures.

The agent loop, the doctor and the LLM proxy split streams with the same `SseSplitter`. A request is sent once: callers
decide on retries, deadlines and affinity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import anyio
import httpx2
from pydantic_core import from_json

from toolhub_agent.llm.errors import AttemptFailed, error_message, failure_from_status, parse_retry_after, sanitize
from toolhub_agent.types import Json

# --- Session headers --------------------------------------------------------------------------------------------------
# Headers that tell routers and engines which conversation a request belongs to. Other servers ignore them.

MAX_HEADER_CHARS = 200
# Of MiroFlow; of vLLM, its routers and llm-d; of SGLang's gateway; of Dynamo.
SESSION_HEADERS = ("x-upstream-session-id", "X-Session-ID", "X-SMG-Routing-Key", "X-Dynamo-Session-ID")
# llm-d's session affinity sends this with an answer and expects it with the next request.
SESSION_TOKEN_HEADER = "x-session-token"  # noqa: S105
MAX_TOKEN_CHARS = 4096


def session_headers(session: str) -> dict[str, str]:
    """The headers of a conversation's requests."""
    return dict.fromkeys(SESSION_HEADERS, header_value(session))


def header_value(text: str) -> str:
    """A name in a form that a header can carry: ASCII without control characters, bounded, and still unique."""
    safe = quote(text, safe="!#$&'()*+,/:;=?@[]-._~|", errors="backslashreplace")
    if len(safe) <= MAX_HEADER_CHARS:
        return safe
    return f"{safe[: MAX_HEADER_CHARS - 33]}-{blake2b(safe.encode(), digest_size=16).hexdigest()}"


def engine_root(endpoint: str) -> str:
    """An engine's address without the API's `/v1`. `/metrics`, `/version` and `/close_session` are below it."""
    return endpoint.rstrip("/").removesuffix("/v1")


# --- Server-sent events -----------------------------------------------------------------------------------------------

# An event ends with an empty line (WHATWG HTML, section 9.2.6: LF, CRLF or CR).
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
# No event of this API is longer. A longer one is returned unchanged, in pieces.
MAX_EVENT_BYTES = 8 << 20
DONE = b"[DONE]"


class SseSplitter:
    """Splits a byte stream into whole events, each with its end, so that a caller can leave one out."""

    def __init__(self) -> None:
        self._rest = b""
        self._seen = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that this piece completes."""
        rest = self._rest + piece if self._rest else piece
        events: list[bytes] = []
        begin, look = 0, max(0, self._seen - 3)
        while (end := _EVENT_END.search(rest, look)) is not None:
            events.append(rest[begin : end.end()])
            begin = look = end.end()
        self._rest = rest[begin:]
        self._seen = len(self._rest)
        if self._seen > MAX_EVENT_BYTES:
            events.append(self.take_rest())
        return events

    def take_rest(self) -> bytes:
        """The bytes after the last whole event."""
        rest, self._rest, self._seen = self._rest, b"", 0
        return rest


def event_text(event: bytes) -> bytes:
    """The `data` of an event; empty for comments and events without data."""
    return b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))


def event_data(event: bytes) -> Any:
    """The JSON that an event carries; None for `[DONE]`, comments and events without data. Raises ValueError."""
    text = event_text(event)
    return from_json(text, cache_strings="keys") if text and text != DONE else None


# --- Requests ---------------------------------------------------------------------------------------------------------

CHAT_PATH = "/chat/completions"
# For an error's body, a list of models or an answer that is not streamed. No model writes more.
MAX_BODY_BYTES = 64 << 20
# For the end of a stream after its last event, and for closing a connection during an answer: both are local work.
CLOSE_S = 1.0
# httpx2 raises these if a server cannot be reached or breaks off its answer.
HTTP_ERRORS = (httpx2.HTTPError, httpx2.StreamError)


class ChunkStream:
    """The chunks of one streamed answer, as plain objects."""

    def __init__(self, response: httpx2.Response, secrets: tuple[str, ...]) -> None:
        self._response = response
        self._secrets = secrets
        self._pieces = response.aiter_bytes()
        self._splitter = SseSplitter()
        self._events: list[bytes] = []
        self._is_read = False
        self.bytes_read = 0

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def next(self) -> Any:
        """Return the next chunk, None at the end. Raises AttemptFailed."""
        while (event := await self._next_event()) is not None:
            if len(event) > MAX_EVENT_BYTES:
                raise AttemptFailed("the stream has an event that has no end", is_endpoint_fault=False)
            text = event_text(event)
            if text == DONE:
                await self._read_to_end()
                return None
            if text:
                return self._chunk(text)
        return None

    async def aclose(self) -> None:
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._response.aclose()

    async def _next_event(self) -> bytes | None:
        while not self._events:
            if self._is_read:
                return None
            try:
                piece = await anext(self._pieces, None)
            except HTTP_ERRORS as exc:
                raise connection_failure(exc, self._secrets) from exc
            if piece is None:
                self._is_read = True
                self._events = [self._splitter.take_rest()]
            else:
                self.bytes_read += len(piece)
                self._events = self._splitter.feed(piece)
        return self._events.pop(0)

    async def _read_to_end(self) -> None:
        """Read the rest of the answer: a connection can be used again only after that."""
        with anyio.move_on_after(CLOSE_S):
            try:
                async for _ in self._pieces:
                    pass
            except HTTP_ERRORS:
                pass  # the answer is complete

    def _chunk(self, text: bytes) -> Any:
        try:
            chunk = from_json(text, cache_strings="keys")
        except ValueError as exc:
            raise AttemptFailed("the stream is not JSON", is_endpoint_fault=False) from exc
        if isinstance(chunk, dict) and chunk.get("error"):
            message, code = error_message(chunk["error"])
            raise failure_from_status(_status_in(code), sanitize(message or "an error", self._secrets), code=code)
        return chunk


class ChatTransport:
    """Sends requests to one endpoint's API over its connection pool. Every failure is an AttemptFailed."""

    def __init__(self, endpoint: str, http: httpx2.AsyncClient, *, secrets: tuple[str, ...] = ()) -> None:
        """http: has the key and configured headers. secrets: removed from error texts."""
        self.endpoint = endpoint
        self.http = http
        self.secrets = secrets

    def __repr__(self) -> str:
        return f"<ChatTransport to {self.endpoint}>"

    async def stream(self, body: Json, headers: Mapping[str, str]) -> ChunkStream:
        """Send a streamed chat request. Return when the head of the answer has come."""
        request = self.http.build_request("POST", self.endpoint + CHAT_PATH, json=body, headers=dict(headers))
        try:
            response = await self.http.send(request, stream=True)
        except HTTP_ERRORS as exc:
            raise connection_failure(exc, self.secrets) from exc
        if response.is_success:
            return ChunkStream(response, self.secrets)
        async with aclosing(response):
            raise await self.refusal(response)

    async def ask(self, body: Json, headers: Mapping[str, str]) -> Any:
        """Send a chat request that is not streamed; return the JSON of its answer."""
        return await self._json("POST", CHAT_PATH, headers, body)

    async def models(self) -> list[Json]:
        """The models that the endpoint lists at `/models`."""
        answer = await self._json("GET", "/models", {})
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list):
            raise AttemptFailed("/models does not list models", is_endpoint_fault=False)
        return [model for model in data if isinstance(model, dict) and isinstance(model.get("id"), str)]

    async def _json(self, method: str, path: str, headers: Mapping[str, str], body: Json | None = None) -> Any:
        try:
            async with self.http.stream(method, self.endpoint + path, json=body, headers=dict(headers)) as response:
                if not response.is_success:
                    raise await self.refusal(response)
                return from_json(await read_body(response, MAX_BODY_BYTES), cache_strings="keys")
        except HTTP_ERRORS as exc:
            raise connection_failure(exc, self.secrets) from exc
        except ValueError as exc:
            raise AttemptFailed(f"{path} did not answer with JSON", is_endpoint_fault=False) from exc

    async def refusal(self, response: httpx2.Response) -> AttemptFailed:
        """The failure for an error answer. It has the status even if the body is not readable."""
        try:
            content = await read_body(response, MAX_BODY_BYTES)
        except (*HTTP_ERRORS, BodyTooLarge):
            content = b""
        try:
            message, code = error_message(from_json(content))
        except ValueError:
            message, code = "", ""
        text = message or content.decode(errors="replace")
        after = parse_retry_after(response.headers.get("retry-after"))
        return failure_from_status(response.status_code, sanitize(text, self.secrets), code=code, retry_after=after)


class BodyTooLarge(ValueError):
    """A server's body is larger than the limit."""


async def read_body(response: httpx2.Response, limit: int) -> bytes:
    """The whole body of a response. Raises BodyTooLarge."""
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > limit:
            raise BodyTooLarge(f"the answer has more than {limit} bytes")
    return bytes(content)


def connection_failure(exc: Exception, secrets: tuple[str, ...]) -> AttemptFailed:
    """The failure of an endpoint that could not be reached or broke off its answer."""
    return AttemptFailed(sanitize(f"{type(exc).__name__}: {exc}".rstrip(": "), secrets))


def _status_in(code: str) -> int | None:
    """The status of an error inside a stream, if its code holds one."""
    first = code.split(" ")[0]
    return int(first) if first.isdigit() and 400 <= int(first[:4]) < 600 else None
