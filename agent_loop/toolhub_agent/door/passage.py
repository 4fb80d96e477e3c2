"""One request at one endpoint: sent, and its answer passed on as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter  # uvloop's own clock ticks in milliseconds

import anyio
import httpcore2
import httpx2

from toolhub_agent.door.connections import Connections
from toolhub_agent.door.conversation import Conversation
from toolhub_agent.door.copy import AnswerCopy
from toolhub_agent.door.events import EventSplitter, is_usage_only
from toolhub_agent.door.headers import Raw, to_client, to_engine, value_of
from toolhub_agent.door.joined import JoiningBackend
from toolhub_agent.door.reply import Reply
from toolhub_agent.door.request import Asked, Unreadable, read_object
from toolhub_agent.door.statistics import Counts
from toolhub_agent.kv_hints.estimates import FirstTokenEstimator
from toolhub_agent.kv_hints.signals import EngineFields
from toolhub_agent.llm.endpoint_pool import MAX_KEEPALIVE_CONNECTIONS, EndpointPool
from toolhub_agent.llm.errors import is_retryable, parse_retry_after
from toolhub_agent.llm.transport import MAX_TOKEN_CHARS, SESSION_HEADERS, SESSION_TOKEN_HEADER
from toolhub_agent.model import Usage

# An answer that is not streamed is held until it is whole; no model writes that much.
LARGEST_ANSWER = 64 << 20
# What an engine says that does not know a field.
_UNKNOWN_FIELD = (400, 422)
_SESSION_NAMES = frozenset({*(name.lower().encode() for name in SESSION_HEADERS), SESSION_TOKEN_HEADER.encode()})
_FAILURES = (
    (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError, httpcore2.TimeoutException)
    + (httpcore2.UnsupportedProtocol, httpcore2.ConnectionNotAvailable, httpx2.InvalidURL)
)  # fmt: skip


class BrokenError(Exception):
    """The endpoint gave no answer, or not all of it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and whom it belongs to. affinity: decides the endpoint. conversation: None for all but chats.

    arrived_at: when its body was here, on the clock of `perf_counter`.
    """

    asked: Asked
    affinity: str
    conversation: Conversation | None
    arrived_at: float


@dataclass(frozen=True, slots=True)
class Sent:
    """What an endpoint is sent. is_stripped: usage was asked for, and is not to be seen. waited: for a slot."""

    content: bytes
    fields: EngineFields = field(default_factory=EngineFields)
    is_stripped: bool = False
    waited: float = 0.0


@dataclass(eq=False)
class Passage:
    """Everything that one endpoint's requests share. configured: names of headers that the config sets."""

    url: str
    fleet: EndpointPool
    counts: Counts
    configured: frozenset[str]
    pace: FirstTokenEstimator = field(default_factory=FirstTokenEstimator)

    def __post_init__(self) -> None:
        self._secrets = tuple(secret.encode() for secret in self.fleet.secrets)
        client = self.fleet.client(self.url)
        raw = [(name.lower(), value) for name, value in client.headers.raw]
        self._own = [(name, value) for name, value in raw if name.decode("latin-1") in self.configured]
        self._extensions = {"timeout": client.timeout.as_dict()}
        self._host = [] if "host" in self.configured else [(b"host", httpx2.URL(self.url).netloc)]
        self._urls: dict[str, httpcore2.URL] = {}
        self._connections = Connections(
            self.fleet.connector(self.url, JoiningBackend()),
            most=self.fleet.most_connections,
            most_idle=MAX_KEEPALIVE_CONNECTIONS,
        )

    async def aclose(self) -> None:
        await self._connections.aclose()

    async def run(self, turn: Turn, sent: Sent, reply: Reply, *, may_be_refused: bool) -> int:
        """Answer the request; return the engine's status.

        may_be_refused: nothing is answered if the engine does not understand the request. Raises BrokenError.
        """
        sent_at = perf_counter()
        async with self._response(turn, sent) as response:
            status = response.status
            if may_be_refused and status in _UNKNOWN_FIELD:
                return status
            given = [(name.lower(), value) for name, value in response.headers]
            self._note(status, given, turn.conversation)
            headers = to_client(given, secrets=self.fleet.secrets)
            if status == 200 and turn.asked.is_stream and _is_events(given):
                await reply.start(status, headers)
                await self._pass_on(response, turn, sent, reply, sent_at)
            else:
                content = await self._whole(response)
                await reply.whole(status, headers, content if status < 400 else self._scrubbed(content))
                if status == 200 and turn.asked.path != "/models":
                    self._read_whole(content, turn, perf_counter() - sent_at)
        return status

    @asynccontextmanager
    async def _response(self, turn: Turn, sent: Sent) -> AsyncIterator[httpcore2.Response]:
        what = "could not be asked"
        try:
            async with self._connections.send(self._request(turn, sent)) as response:
                what = "broke off its answer"
                yield response
        except _FAILURES as exc:
            raise BrokenError(f"{what} ({type(exc).__name__})") from None

    def _request(self, turn: Turn, sent: Sent) -> httpcore2.Request:
        asked = turn.asked
        url = self._urls.get(asked.path) or self._urls.setdefault(asked.path, _target(self.url + asked.path))
        headers = [*self._host, *self._headers(turn, sent.fields)]
        if sent.content:
            headers.append((b"content-length", str(len(sent.content)).encode()))
        return httpcore2.Request(
            b"POST" if asked.raw else b"GET",
            _target(self.url + asked.path, asked.query) if asked.query else url,
            headers=headers,
            content=sent.content or None,
            extensions=self._extensions,
        )

    def _headers(self, turn: Turn, fields: EngineFields) -> list[Raw]:
        headers = to_engine(turn.asked.headers, configured=self.configured)
        if (conversation := turn.conversation) is not None:
            own = {**conversation.headers, **fields.headers}
            if conversation.token is not None:
                own[SESSION_TOKEN_HEADER] = conversation.token
            headers = [(name, value) for name, value in headers if name not in _SESSION_NAMES]
            headers += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in own.items()]
        return [*headers, *self._own, (b"accept-encoding", b"identity")]

    def _note(self, status: int, headers: Sequence[Raw], conversation: Conversation | None) -> None:
        """What the head tells: is the endpoint well, and does its router want to know something again?"""
        if is_retryable(status):
            self.fleet.endpoints.failed(self.url, for_s=parse_retry_after(value_of(headers, b"retry-after") or None))
        elif status < 400:
            self.fleet.endpoints.worked(self.url)
        token = value_of(headers, SESSION_TOKEN_HEADER.encode())
        if conversation is not None and token and len(token) <= MAX_TOKEN_CHARS:
            conversation.token = token

    async def _pass_on(
        self, response: httpcore2.Response, turn: Turn, sent: Sent, reply: Reply, sent_at: float
    ) -> None:
        """Each event as soon as it is whole: a client could not read half of one, and after a break need not."""
        copy, events = AnswerCopy(is_chat=turn.conversation is not None), EventSplitter()
        ttft: float | None = None
        is_first = True
        async with aclosing(response.aiter_stream()) as pieces:
            async for piece in pieces:
                came_at = perf_counter()
                whole = events.feed(piece)
                shown = [each for each in whole if not is_usage_only(each)] if sent.is_stripped else whole
                if shown:
                    await reply.body(b"".join(shown), more=True)
                if shown and is_first:
                    is_first = False
                    after = perf_counter() - came_at
                    self.counts.added.observe(max(0.0, sent_at - turn.arrived_at - sent.waited) + after)
                    # uvloop writes when the loop comes round: what follows must not hold the first bytes back.
                    await anyio.lowlevel.checkpoint()
                for event in whole:
                    if copy.take_event(event) and ttft is None:
                        ttft = came_at - sent_at
                        self.counts.ttft.observe(ttft)
        await reply.body(events.take_rest(), more=False)
        self._finish(copy, turn, ttft if ttft is not None else perf_counter() - sent_at)

    async def _whole(self, response: httpcore2.Response) -> bytes:
        content = bytearray()
        async with aclosing(response.aiter_stream()) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > LARGEST_ANSWER:
                    raise BrokenError(f"answered more than {LARGEST_ANSWER} bytes")
        return bytes(content)

    def _scrubbed(self, content: bytes) -> bytes:
        """An error as it is, but for what is configured as secret: some servers show the key that they refuse."""
        for secret in self._secrets:
            content = content.replace(secret, b"***")
        return content

    def _read_whole(self, content: bytes, turn: Turn, seconds: float) -> None:
        copy = AnswerCopy(is_chat=turn.conversation is not None)
        try:
            copy.take_whole(read_object(content))
        except Unreadable:
            return
        usage = copy.usage or Usage()
        read = usage.prompt_tokens - (usage.cached_tokens or 0)
        self.pace.observe(read=read, written=usage.completion_tokens, seconds=seconds)
        self._finish(copy, turn, self.pace.first_token(read=read, written=usage.completion_tokens, seconds=seconds))

    def _finish(self, copy: AnswerCopy, turn: Turn, ttft: float) -> None:
        if copy.usage is not None:
            self.counts.used(copy.usage)
        conversation, asked = turn.conversation, turn.asked
        answer = copy.answer(ttft)
        if conversation is None or answer is None:
            return
        messages = asked.messages or []
        conversation.finish(answer, messages, asked.prompt_body(), self.url, is_turn=asked.has_one_answer)


def _target(url: str, query: bytes = b"") -> httpcore2.URL:
    parsed = httpx2.URL(url)
    if query:
        parsed = parsed.copy_with(query=query)
    return httpcore2.URL(scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path)


def _is_events(headers: Sequence[Raw]) -> bool:
    return value_of(headers, b"content-type").partition(";")[0].strip().lower() == "text/event-stream"
