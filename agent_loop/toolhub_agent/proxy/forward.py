"""Sends a request to an endpoint and passes its answer on. If the first endpoint gives no answer, it tries another.

`Forwarder` chooses and tries endpoints. `UpstreamClient` sends one request to one endpoint and passes the answer on
as it comes. `ResponseTap` parses a copy of the answer for the hints. If it cannot parse it, that turn gets no hints.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import anyio
import httpx2

from toolhub.config.llm import LlmSettings
from toolhub.model import FairShareKey
from toolhub_agent.admission.controller import AdmittedTurn, TurnRequest
from toolhub_agent.errors import AnswerUnreadable, LlmUnavailable
from toolhub_agent.history import encoded
from toolhub_agent.kv_hints.estimates import estimate_ttft
from toolhub_agent.kv_hints.signals import HintSink
from toolhub_agent.llm.accumulator import AnswerAccumulator, usage_of
from toolhub_agent.llm.concurrency import Slot
from toolhub_agent.llm.endpoint_pool import EndpointPool
from toolhub_agent.llm.errors import UNKNOWN_FIELD, AttemptFailed, is_retryable, parse_retry_after
from toolhub_agent.llm.transport import (
    CLOSE_S,
    HTTP_ERRORS,
    MAX_TOKEN_CHARS,
    SESSION_HEADERS,
    SESSION_TOKEN_HEADER,
    SseSplitter,
    event_data,
)
from toolhub_agent.proxy.http_messages import (
    ClientResponse,
    Header,
    HTTPError,
    InvalidBody,
    ProxyRequest,
    header_text,
    headers_to_client,
    headers_to_engine,
    inject_engine_fields,
    read_object,
)
from toolhub_agent.proxy.metrics import ProxyCounters
from toolhub_agent.proxy.prefix_index import digest_of
from toolhub_agent.proxy.sessions import ProxySession
from toolhub_agent.types import EngineFields, Json, Usage

# --- Parsing a copy of the answer -------------------------------------------------------------------------------------
# A copy of an answer that passes through: its text, calls and usage, for the hints. A parse error costs only the hints
# of that turn.

logger = logging.getLogger("toolhub.llm_proxy")


_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def is_usage_only(event: bytes) -> bool:
    """Whether this is the chunk that `stream_options.include_usage` adds at the end: usage and no choices."""
    return _USAGE.search(event) is not None and _NO_CHOICES.search(event) is not None


@dataclass(frozen=True, slots=True)
class TappedAnswer:
    """A finished chat answer. ttft: seconds from sending the request to the first piece."""

    text: str
    reasoning: str
    calls: tuple[Json, ...]
    usage: Usage
    ttft: float


class ResponseTap:
    """Parses a copy of one answer. is_chat: False for text completions, of which only the usage is read."""

    def __init__(self, *, is_chat: bool) -> None:
        self.usage: Usage | None = None
        self._is_chat = is_chat
        self._reader = AnswerAccumulator()
        self._is_readable = True

    def __repr__(self) -> str:
        return f"<ResponseTap {self._reader!r}{'' if self._is_readable else ', unreadable'}>"

    def take_event(self, event: bytes) -> bool:
        """Read one server-sent event; True if it holds a piece of the answer."""
        if not self._is_readable:
            return False
        try:
            chunk = event_data(event)
            return chunk is not None and self._take(chunk)
        except (ValueError, AttemptFailed, AnswerUnreadable, RecursionError) as exc:
            self._give_up(exc)
            return False

    def take_whole(self, body: Any) -> None:
        """Read an answer that was not streamed."""
        try:
            choices = body["choices"] if isinstance(body, dict) else []
            first = choices[0] if choices else {}
            self._take({**body, "choices": [{**first, "delta": first.get("message")}]})
        except (LookupError, TypeError, AttributeError, AttemptFailed, AnswerUnreadable) as exc:
            self._give_up(exc)

    def answer(self, ttft: float) -> TappedAnswer | None:
        """The parsed answer; None if it is not complete."""
        if not self._is_chat or not self._is_readable:
            return None
        try:
            self._reader.finish()
        except (AttemptFailed, AnswerUnreadable):
            return None
        reader = self._reader
        return TappedAnswer(reader.text, reader.reasoning, reader.calls(), self.usage or Usage(), ttft)

    def _take(self, chunk: Json) -> bool:
        if isinstance(chunk, dict) and isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage_of(usage, chunk)
        if not self._is_chat:
            return bool(chunk.get("choices"))
        return self._reader.feed(chunk) is not None

    def _give_up(self, exc: Exception) -> None:
        self._is_readable = False
        logger.debug("cannot parse an answer for the hints: %s", type(exc).__name__)


# --- One endpoint -----------------------------------------------------------------------------------------------------
# Sends one request to one endpoint and passes its answer on.

# An answer that is not streamed is held until it is complete. No model writes this much.
MAX_ANSWER_BYTES = 64 << 20
_SESSION_NAMES = frozenset({*(name.lower().encode() for name in SESSION_HEADERS), SESSION_TOKEN_HEADER.encode()})


class UpstreamError(Exception):
    """The endpoint gave no answer, or not all of it."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request and its conversation. affinity: decides the endpoint. conversation: None for all but chats.

    arrived_at: when its body was complete, on the clock of `perf_counter`. share: of the hub's task that it belongs to.
    """

    asked: ProxyRequest
    affinity: str
    conversation: ProxySession | None
    arrived_at: float
    share: FairShareKey = FairShareKey()


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """What an endpoint is sent.

    turn: ends with the answer. is_stripped: the proxy asked for the usage, so it removes it from the answer. waited:
    seconds for admission and a slot.
    """

    content: bytes
    turn: AdmittedTurn
    fields: EngineFields = field(default_factory=EngineFields)
    is_stripped: bool = False
    waited: float = 0.0


@dataclass(eq=False)
class UpstreamClient:
    """Sends requests to one endpoint. configured: names of the headers that the config sets."""

    url: str
    pool: EndpointPool
    counters: ProxyCounters
    configured: frozenset[str]

    def __post_init__(self) -> None:
        self._secrets = tuple(secret.encode() for secret in self.pool.secrets)
        client = self.pool.client(self.url)
        raw = [(name.lower(), value) for name, value in client.headers.raw]
        self._own = [(name, value) for name, value in raw if name.decode("latin-1") in self.configured]
        self._http = client

    async def run(
        self, turn: RoutedRequest, sent: OutgoingRequest, reply: ClientResponse, *, may_be_refused: bool
    ) -> int:
        """Answer the request. Return the engine's status.

        may_be_refused: do not answer the client if the engine does not understand the request. Raises UpstreamError.
        """
        sent_at = perf_counter()
        async with self._response(turn, sent) as response:
            status = response.status_code
            if may_be_refused and status in UNKNOWN_FIELD:
                return status
            given = [(name.lower(), value) for name, value in response.headers.raw]
            self._note(status, given, turn.conversation)
            headers = headers_to_client(given, secrets=self.pool.secrets)
            if status == 200 and turn.asked.is_stream and _is_events(given):
                await reply.start(status, headers)
                await self._pass_on(response, turn, sent, reply, sent_at)
            else:
                content = await self._whole(response)
                await reply.whole(status, headers, content if status < 400 else self._scrubbed(content))
                if status == 200 and turn.asked.path != "/models":
                    self._read_whole(content, turn, sent, perf_counter() - sent_at)
        return status

    @asynccontextmanager
    async def _response(self, turn: RoutedRequest, sent: OutgoingRequest) -> AsyncIterator[httpx2.Response]:
        what = "could not be reached"
        try:
            response = await self._http.send(self._request(turn, sent), stream=True)
            try:
                what = "broke off its answer"
                yield response
            finally:
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await response.aclose()
        except (*HTTP_ERRORS, httpx2.InvalidURL) as exc:
            raise UpstreamError(f"{what} ({type(exc).__name__})") from None

    def _request(self, turn: RoutedRequest, sent: OutgoingRequest) -> httpx2.Request:
        """The request with the client's own headers. `build_request` would add others."""
        asked = turn.asked
        url = httpx2.URL(self.url + asked.path)
        return httpx2.Request(
            "POST" if asked.raw else "GET",
            url.copy_with(query=asked.query) if asked.query else url,
            headers=self._headers(turn, sent.fields),
            content=sent.content or None,
        )

    def _headers(self, turn: RoutedRequest, fields: EngineFields) -> list[Header]:
        headers = headers_to_engine(turn.asked.headers, configured=self.configured)
        if (conversation := turn.conversation) is not None:
            own = {**conversation.headers, **fields.headers}
            if conversation.token is not None:
                own[SESSION_TOKEN_HEADER] = conversation.token
            headers = [(name, value) for name, value in headers if name not in _SESSION_NAMES]
            headers += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in own.items()]
        return [*headers, *self._own, (b"accept-encoding", b"identity")]

    def _note(self, status: int, headers: Sequence[Header], conversation: ProxySession | None) -> None:
        """Learn from the answer's head whether the endpoint is healthy, and keep the router's token.

        The token goes into the conversation's next request.
        """
        if is_retryable(status):
            self.pool.endpoint_failed(self.url, for_s=parse_retry_after(header_text(headers, b"retry-after") or None))
        elif status < 400:
            self.pool.router.worked(self.url)
        token = header_text(headers, SESSION_TOKEN_HEADER.encode())
        if conversation is not None and token and len(token) <= MAX_TOKEN_CHARS:
            conversation.token = token

    async def _pass_on(
        self,
        response: httpx2.Response,
        turn: RoutedRequest,
        sent: OutgoingRequest,
        reply: ClientResponse,
        sent_at: float,
    ) -> None:
        """Pass each event on when it is complete. A client cannot read half an event."""
        copy, events = ResponseTap(is_chat=turn.conversation is not None), SseSplitter()
        ttft: float | None = None
        is_first = True
        async with aclosing(response.aiter_raw()) as pieces:
            async for piece in pieces:
                came_at = perf_counter()
                whole = events.feed(piece)
                shown = [each for each in whole if not is_usage_only(each)] if sent.is_stripped else whole
                if shown:
                    await reply.body(b"".join(shown), more=True)
                if shown and is_first:
                    is_first = False
                    after = perf_counter() - came_at
                    self.counters.added.observe(max(0.0, sent_at - turn.arrived_at - sent.waited) + after)
                    # uvloop writes when the loop runs next. The work below must not delay the first bytes.
                    await anyio.lowlevel.checkpoint()
                for event in whole:
                    if copy.take_event(event) and ttft is None:
                        ttft = came_at - sent_at
                        self.counters.ttft.observe(ttft)
        await reply.body(events.take_rest(), more=False)
        self._finish(copy, turn, sent, ttft if ttft is not None else perf_counter() - sent_at)

    async def _whole(self, response: httpx2.Response) -> bytes:
        content = bytearray()
        async with aclosing(response.aiter_raw()) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise UpstreamError(f"answered more than {MAX_ANSWER_BYTES} bytes")
        return bytes(content)

    def _scrubbed(self, content: bytes) -> bytes:
        """An error body with the configured secrets replaced: some servers repeat the key that they refuse."""
        for secret in self._secrets:
            content = content.replace(secret, b"***")
        return content

    def _read_whole(self, content: bytes, turn: RoutedRequest, sent: OutgoingRequest, seconds: float) -> None:
        copy = ResponseTap(is_chat=turn.conversation is not None)
        try:
            copy.take_whole(read_object(content))
        except InvalidBody:
            return
        usage = copy.usage or Usage()
        read = usage.prompt_tokens - (usage.cached_tokens or 0)
        self._finish(copy, turn, sent, estimate_ttft(read=read, written=usage.completion_tokens, seconds=seconds))

    def _finish(self, copy: ResponseTap, turn: RoutedRequest, sent: OutgoingRequest, ttft: float) -> None:
        usage = copy.usage or Usage()
        if copy.usage is not None:
            self.counters.used(copy.usage)
        conversation, asked = turn.conversation, turn.asked
        answer = copy.answer(ttft)
        if conversation is None or answer is None:
            sent.turn.finish(usage)
            return
        messages = asked.messages or []
        conversation.finish(answer, messages, asked.prompt_body(), self.url, is_turn=asked.has_one_answer)
        sent.turn.finish(usage, keeps_place=conversation.will_go_on)


def _is_events(headers: Sequence[Header]) -> bool:
    return header_text(headers, b"content-type").partition(";")[0].strip().lower() == "text/event-stream"


# --- All endpoints ----------------------------------------------------------------------------------------------------
# Chooses an endpoint, waits for a slot there, and tries another endpoint if the first gives no answer.

# If more requests than this waited for one endpoint, the last would wait for hours.
MAX_WAITING = 2048


class Forwarder:
    """Forwards all requests. It may try another endpoint until the head of an answer has come."""

    def __init__(self, pool: EndpointPool, settings: LlmSettings, hints: HintSink, counters: ProxyCounters) -> None:
        self.pool = pool
        self.hints = hints
        self._settings = settings
        self._counters = counters
        key = {"authorization"} if settings.api_key else set()
        configured = frozenset({name.lower() for name in settings.headers} | key)
        self._upstreams = {url: UpstreamClient(url, pool, counters, configured) for url in pool.router.urls}
        self._plain: set[str] = set()
        """Endpoints that refused a field that the proxy added."""

    def __repr__(self) -> str:
        return f"<Forwarder over {self.pool!r}>"

    async def run(self, turn: RoutedRequest, reply: ClientResponse) -> None:
        """Answer the request. Raises HTTPError if no model server does."""
        deadline = anyio.current_time() + self._settings.total_timeout_s
        tried: set[str] = set()
        while True:
            arrived, began = anyio.current_time(), perf_counter()
            url, admitted = await self._admit(turn)
            slot: Slot | None = None
            try:
                # A paused agent may wait for long. That is no fault, so it does not count as time for the request.
                deadline += anyio.current_time() - arrived
                slot = await self._slot(turn, url, deadline)
                await self._ask(turn, admitted, url, reply, deadline, waited=perf_counter() - began)
                return
            except UpstreamError as exc:
                self.pool.endpoint_failed(url)
                if reply.status:
                    await reply.break_off(502, f"the model server {exc}")
                    return
                # An idle connection that the server closed is not the endpoint's fault: one more try is always allowed.
                if url in tried and self.pool.router.of(turn.affinity) in tried:
                    raise HTTPError.for_now(502, f"no model server answers; the last one {exc}") from None
                tried.add(url)
            finally:
                if slot is not None:
                    slot.release()
                admitted.release()

    async def _admit(self, turn: RoutedRequest) -> tuple[str, AdmittedTurn]:
        """The endpoint, when the conversation may take a turn there."""
        if turn.asked.path == "/models" or not self.pool.admission.is_on:
            return self.pool.router.choose(turn.affinity), AdmittedTurn()
        if self.pool.admission.waiting >= MAX_WAITING:
            raise HTTPError.for_now(429, f"{MAX_WAITING} requests already wait for room in a KV cache")
        return await self.pool.admit(turn.affinity, _turn_request(turn))

    async def _slot(self, turn: RoutedRequest, url: str, deadline: float) -> Slot | None:
        """Wait for a slot, first come, first served. An engine gets only as many requests as it runs."""
        if turn.asked.path == "/models":
            return None
        if self.pool.limiter.statistics(url).waiting >= MAX_WAITING:
            raise HTTPError.for_now(429, f"{MAX_WAITING} requests already wait for the model server")
        try:
            return await self.pool.limiter.acquire(url, deadline=deadline)
        except LlmUnavailable:
            raise HTTPError.for_now(503, "no slot at the model server became free in time") from None

    async def _ask(
        self,
        turn: RoutedRequest,
        admitted: AdmittedTurn,
        url: str,
        reply: ClientResponse,
        deadline: float,
        *,
        waited: float,
    ) -> None:
        self._counters.waited_s += waited
        began = anyio.current_time()
        with anyio.move_on_at(min(deadline, began + self._settings.attempt_timeout_s)) as scope:
            await self._ask_in_time(turn, OutgoingRequest(turn.asked.raw, admitted, waited=waited), url, reply)
        if scope.cancelled_caught:
            message = f"the model server took longer than {anyio.current_time() - began:.0f} s"
            if not reply.status:
                raise HTTPError(504, message)
            await reply.break_off(504, message)

    async def _ask_in_time(self, turn: RoutedRequest, plain: OutgoingRequest, url: str, reply: ClientResponse) -> None:
        upstream = self._upstreams[url]
        sent = plain if url in self._plain else self._with_engine_fields(turn, plain, url)
        await upstream.run(turn, sent, reply, may_be_refused=sent.content is not plain.content)
        if not reply.status:
            # A client must never see an error about a field that it did not write.
            status = await upstream.run(turn, plain, reply, may_be_refused=False)
            if status < 400:
                self._plain.add(url)

    def _with_engine_fields(self, turn: RoutedRequest, plain: OutgoingRequest, url: str) -> OutgoingRequest:
        """The request with the fields that the hints and the proxy's own usage counters need."""
        asked, conversation = turn.asked, turn.conversation
        fields = EngineFields() if conversation is None else self.hints.engine_fields(conversation.name, url)
        content = inject_engine_fields(asked, fields.body, with_usage=True)
        return replace(plain, content=content, fields=fields, is_stripped=asked.is_stream and not asked.wants_usage)


def _turn_request(turn: RoutedRequest) -> TurnRequest:
    """What admission needs to know of a request. One without a conversation is done when it is answered."""
    asked, conversation = turn.asked, turn.conversation
    if conversation is None:
        return TurnRequest("", len(asked.raw))
    first = (asked.messages or [{}])[0]
    prefix = b""
    if first.get("role") == "system":
        prefix = encoded([first, asked.body.get("tools")])
    return TurnRequest(
        conversation.name,
        len(asked.raw),
        prefix=digest_of(prefix).hex() if prefix else "",
        prefix_bytes=len(prefix),
        run=turn.share.run,
        weight=turn.share.run_weight,
        # A client that names its session sends the requests of its sub-agents with the same name.
        parent=conversation.affinity if conversation.affinity != conversation.name else None,
        is_rewritten=conversation.is_rewritten,
    )
