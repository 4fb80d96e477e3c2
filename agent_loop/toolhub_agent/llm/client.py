"""The client of the model servers, as the agent loop uses it.

`LlmClient.stream` sends one request. An `LlmStream` makes attempts until one yields the first piece of the answer. Each
attempt goes to the endpoint that is best at that moment. After the first piece there is no further attempt.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import anyio
import httpx2

from toolhub.config.agent import Sampling
from toolhub.config.llm import LlmSettings
from toolhub_agent.admission.controller import AdmittedTurn, TurnRequest
from toolhub_agent.errors import AnswerUnreadable, LlmUnavailable
from toolhub_agent.history import encoded
from toolhub_agent.llm.accumulator import AnswerAccumulator, usage_of
from toolhub_agent.llm.concurrency import Slot
from toolhub_agent.llm.endpoint_pool import EndpointPool, EndpointStatistics, open_endpoint_pool
from toolhub_agent.llm.errors import UNKNOWN_FIELD, AttemptFailed, FailureKind, retry_pause
from toolhub_agent.llm.transport import MAX_TOKEN_CHARS, SESSION_TOKEN_HEADER, ChunkStream, session_headers
from toolhub_agent.types import Completion, Delta, EngineFields, Json, Message, Usage

# --- A request --------------------------------------------------------------------------------------------------------
# A request of the loop and its JSON.


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """One request of a conversation. session: the conversation's name, which decides the endpoint.

    body: more fields of the request (tools, tool_choice, ...); they override sampling. engine_fields: called with each
    endpoint that is chosen; returns the additional fields for the engine there. parent: the conversation that waits for
    this one. is_rewritten: the prompt was cut before its end, so an engine reuses less of it.
    """

    session: str
    messages: Sequence[Message]
    body: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    engine_fields: Callable[[str], EngineFields] | None = None
    parent: str | None = None
    is_rewritten: bool = False


def turn_request(request: LlmRequest) -> TurnRequest:
    """What admission needs to know of a request."""
    sizes = [len(encoded(message)) for message in request.messages]
    first = request.messages[0] if request.messages else {}
    tools = encoded(request.body.get("tools") or [])
    has_prefix = first.get("role") == "system"
    return TurnRequest(
        request.session,
        sum(sizes) + len(tools),
        prefix=blake2b(encoded(first) + tools, digest_size=16).hexdigest() if has_prefix else "",
        prefix_bytes=sizes[0] + len(tools) if has_prefix else 0,
        parent=request.parent,
        is_rewritten=request.is_rewritten,
    )


def chat_request_body(request: LlmRequest, model: str | None) -> Json:
    """The JSON of the streamed request, fields always in the same order. model: None omits it."""
    body: Json = {} if model is None else {"model": model}
    body |= {"messages": list(request.messages), **sampling_fields(request.sampling)}
    if _continues_last_message(request.messages):
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return {**body, **request.body, "stream": True, "stream_options": {"include_usage": True}}


def with_engine_fields(body: Json, fields: EngineFields) -> Json:
    """Add an engine's fields to a request. If both have an object of the same name, the request's keys win."""
    own = {name: value for name, value in body.items() if isinstance(value, dict)}
    return body | {
        name: {**value, **own[name]} if isinstance(value, Mapping) and name in own else value
        for name, value in fields.body.items()
    }


def sampling_fields(sampling: Sampling) -> Json:
    """The sampling fields that are set. The server decides the others."""
    named = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": None if sampling.repetition_penalty == 1 else sampling.repetition_penalty,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
    }
    return {name: value for name, value in named.items() if value is not None} | sampling.extra_body


def _continues_last_message(messages: Sequence[Message]) -> bool:
    """Whether the model must continue its own last message, as MiroFlow asks in that case."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and not last.get("tool_calls")


# --- One attempt ------------------------------------------------------------------------------------------------------
# One request at one endpoint, from sending it to its last chunk.


class Attempt:
    """Holds its slot until `aclose`. Times are on the anyio clock."""

    def __init__(
        self,
        slot: Slot,
        turn: AdmittedTurn,
        send: Callable[[], Awaitable[ChunkStream]],
        *,
        timeout: float,
        deadline: float,
    ) -> None:
        """turn: ends with the attempt. send: sends the request. timeout: of this attempt. deadline: of the turn."""
        self.reader = AnswerAccumulator()
        self.sent_at = anyio.current_time()
        self.first_at: float | None = None
        self.headers: Mapping[str, str] = {}
        self.turn = turn
        self._slot = slot
        self._send = send
        self._deadline = min(deadline, self.sent_at + timeout)
        self._chunks: ChunkStream | None = None

    def __repr__(self) -> str:
        return f"<Attempt at {self.endpoint}, {self.reader!r}>"

    @property
    def endpoint(self) -> str:
        return self._slot.endpoint

    async def next(self) -> Delta | None:
        """Return the next piece, None at the end. Raises AttemptFailed, AnswerUnreadable."""
        with anyio.move_on_at(self._deadline):
            return await self._next()
        waited = anyio.current_time() - self.sent_at
        what = "no answer" if self.first_at is None else "no end of the answer"
        raise AttemptFailed(f"{what} within {waited:.1f} s")

    async def _next(self) -> Delta | None:
        if self._chunks is None:
            self._chunks = await self._send()
            self.headers = self._chunks.headers
        while (chunk := await self._chunks.next()) is not None:
            delta = self.reader.feed(chunk)
            if delta is not None:
                if self.first_at is None:
                    self.first_at = anyio.current_time()
                return delta
        self.reader.finish()
        return None

    async def aclose(self) -> None:
        """Close the connection, so that the engine stops. Then release the slot and the turn."""
        try:
            if self._chunks is not None:
                await self._chunks.aclose()
        finally:
            self._slot.release()
            self.turn.release()


# --- A streamed answer ------------------------------------------------------------------------------------------------
# A streamed answer: attempts until the first piece, none after it.


class LlmStream:
    """One answer. Iterate over it once. `completion` is available after the iteration ended normally.

    The iteration raises LlmUnavailable, LlmRefused or ContextTooLong before the first piece. It raises AnswerUnreadable
    if the answer breaks off after that, repeats itself, or ends with another reason than stop, length or tool_calls.
    """

    def __init__(
        self,
        pool: EndpointPool,
        settings: LlmSettings,
        *,
        session: str,
        turn: TurnRequest,
        send: Callable[[str], Awaitable[ChunkStream]],
        done: Callable[[Completion, Attempt], None],
    ) -> None:
        """turn: what admission needs to know. send: sends the request to an endpoint. done: called with the answer."""
        self.attempts = 0
        self._pool = pool
        self._settings = settings
        self._session = session
        self._turn = turn
        self._send = send
        self._done = done
        self._started_at = anyio.current_time()
        self._deadline = self._started_at + settings.total_timeout_s
        self._attempt: Attempt | None = None
        self._completion: Completion | None = None
        self._closed = False
        self._handed_out = False

    def __repr__(self) -> str:
        state = "finished" if self._completion else "closed" if self._closed else "open"
        return f"<LlmStream {state}, {self.attempts} attempts, {self._attempt!r}>"

    @property
    def completion(self) -> Completion:
        if self._completion is None:
            raise RuntimeError("the answer has not ended; iterate over the stream first")
        return self._completion

    def __aiter__(self) -> LlmStream:
        return self

    async def __anext__(self) -> Delta:
        while not self._closed:
            try:
                attempt = self._attempt or await self._start()
                delta = await attempt.next()
            except AttemptFailed as failure:
                await self._recover(failure)
            except BaseException:
                await self.aclose()
                raise
            else:
                if delta is not None:
                    return self._hand_out(attempt, delta)
                await self._finish(attempt)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop generating and release the slot. The stream yields nothing after that."""
        self._closed = True
        await self._drop()

    async def _start(self) -> Attempt:
        began = anyio.current_time()
        endpoint, turn = await self._pool.admit(self._session, self._turn)
        # A paused agent may wait for long. That is no fault, so it does not count as time for the turn.
        self._deadline += anyio.current_time() - began
        self.attempts += 1
        try:
            slot = await self._pool.limiter.acquire(endpoint, deadline=self._deadline)
        except BaseException as exc:
            turn.release()
            if isinstance(exc, LlmUnavailable):
                raise self._unavailable(endpoint, str(exc)) from None
            raise
        # No await here: a cancellation would lose the slot and the turn.
        self._attempt = Attempt(
            slot,
            turn,
            lambda: self._send(endpoint),
            timeout=self._settings.attempt_timeout_s,
            deadline=self._deadline,
        )
        return self._attempt

    def _hand_out(self, attempt: Attempt, delta: Delta) -> Delta:
        if not self._handed_out:
            self._handed_out = True
            self._pool.router.worked(attempt.endpoint)
        return delta

    async def _finish(self, attempt: Attempt) -> None:
        ended_at, reader = anyio.current_time(), attempt.reader
        self._pool.router.worked(attempt.endpoint)
        attempt.turn.finish(reader.usage)
        await self.aclose()
        self._completion = Completion(
            text=reader.text,
            reasoning=reader.reasoning,
            tool_calls=reader.calls(),
            finish_reason=reader.finish_reason or "",
            usage=reader.usage,
            ttft=(attempt.first_at or ended_at) - attempt.sent_at,
            seconds=ended_at - attempt.sent_at,
            waited=attempt.sent_at - self._started_at,
            endpoint=attempt.endpoint,
            attempts=self.attempts,
        )
        self._done(self._completion, attempt)

    async def _recover(self, failure: AttemptFailed) -> None:
        """Prepare another attempt, or raise the error for the caller."""
        endpoint = self._attempt.endpoint if self._attempt else ""
        await self._drop()
        if failure.is_endpoint_fault:
            self._pool.endpoint_failed(endpoint, for_s=failure.retry_after)
        wait = self._pause(endpoint, failure)
        if self._handed_out:
            error: Exception = AnswerUnreadable(f"{endpoint}: the answer broke off: {failure}")
        elif failure.kind is not FailureKind.RETRYABLE:
            error = failure.refusal(endpoint)
        elif self.attempts >= self._settings.attempts:
            error = self._unavailable(endpoint, str(failure), failure.status)
        elif anyio.current_time() + wait >= self._deadline:
            late = f"{failure}; after the pause of {wait:.1f} s before another attempt the time would be up"
            error = self._unavailable(endpoint, late, failure.status)
        else:
            await anyio.sleep(wait)
            return
        self._closed = True
        raise error from failure

    def _pause(self, endpoint: str, failure: AttemptFailed) -> float:
        """Seconds before the next attempt: 0 if it goes to another endpoint that is healthy."""
        following = self._pool.router.of(self._session)
        if failure.is_endpoint_fault and following != endpoint and self._pool.router.is_healthy(following):
            return 0.0
        return retry_pause(self.attempts, retry_after=failure.retry_after)

    def _unavailable(self, endpoint: str, cause: str, status: int | None = None) -> LlmUnavailable:
        spent = anyio.current_time() - self._started_at
        return LlmUnavailable(
            f"no answer after {self.attempts} attempts in {spent:.1f} s, the last at {endpoint}: {cause}",
            endpoint=endpoint,
            status=status,
        )

    async def _drop(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            await attempt.aclose()


# --- Shared work ------------------------------------------------------------------------------------------------------

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.result: list[V] = []
        """Empty if the work failed or was cancelled."""


class SingleFlight(Generic[K, V]):
    """Does one piece of work per key at a time. Callers that arrive meanwhile wait and get the same result.

    If the work fails or is cancelled, only the caller that did it gets the error. The next waiting caller then does it.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    def __repr__(self) -> str:
        return f"<SingleFlight {len(self._flights)} under way>"

    async def run(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        while (flight := self._flights.get(key)) is not None:
            await flight.ended.wait()
            if flight.result:
                return flight.result[0]
        flight = self._flights[key] = _Flight()
        try:
            result = await work()
            flight.result.append(result)
            return result
        finally:
            del self._flights[key]
            flight.ended.set()


# --- Shared prefixes --------------------------------------------------------------------------------------------------
# Prefetches a prefix that many tasks share, before they all ask for it at the same time.
#
# Without it each of the first requests of a sweep computes the prefix, the same system prompt and tools, because none
# of them has finished when the others start.

T = TypeVar("T")

# How long a prefix is expected to stay in the cache. After that the sweep's own tasks keep it there.
PREFETCHED_S = 300.0
MAX_PREFETCHED = 1000


def prefix_key(messages: Sequence[Message], body: Mapping[str, Any]) -> str:
    """Equal for requests that begin with the same prompt. body: the fields that shape it."""
    written = json.dumps([list(messages), dict(body)], ensure_ascii=False, separators=(",", ":"), default=str)
    return blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def group_by_prefix(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Order a sweep's tasks so that those with the same prefix start together. Otherwise the order is unchanged."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [item for group in groups.values() for item in group]


class PrefixPrefetcher:
    """Prefetches prefixes, each once per endpoint within `PREFETCHED_S`."""

    def __init__(
        self, pool: EndpointPool, send: Callable[[str, Json, Mapping[str, str]], Any], *, timeout: float
    ) -> None:
        """send: sends a request that is not streamed. timeout: of one prefetch, with its wait for a slot."""
        self._pool = pool
        self._send = send
        self._timeout = timeout
        self._flights: SingleFlight[tuple[str, str], Usage | None] = SingleFlight()
        self._prefetched: OrderedDict[tuple[str, str], tuple[float, Usage]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixPrefetcher {len(self._prefetched)} prefixes, {self._flights!r}>"

    async def prefetch(self, messages: Sequence[Message], body: Mapping[str, Any]) -> dict[str, Usage | None]:
        """Return when every healthy endpoint has the prefix. Maps each to the usage, None where the prefetch failed."""
        key = prefix_key(messages, body)
        found: dict[str, Usage | None] = {}

        async def one(url: str) -> None:
            found[url] = await self._one(url, key, {**body, "messages": list(messages)})

        async with anyio.create_task_group() as tasks:
            for url in self._pool.router.urls:
                if self._pool.router.is_healthy(url):
                    tasks.start_soon(one, url)
        return found

    async def _one(self, url: str, key: str, body: Json) -> Usage | None:
        at, usage = self._prefetched.get((url, key), (0.0, None))
        if usage is not None and anyio.current_time() - at < PREFETCHED_S:
            return usage
        return await self._flights.run((url, key), lambda: self._ask(url, key, body))

    async def _ask(self, url: str, key: str, body: Json) -> Usage | None:
        deadline = anyio.current_time() + self._timeout
        try:
            async with self._pool.limiter.hold(url, deadline=deadline):
                with anyio.fail_at(deadline):
                    answer = await self._send(url, {**body, "max_tokens": 1, "stream": False}, session_headers(key))
        except (AttemptFailed, LlmUnavailable, TimeoutError):
            return None  # without the prefetch the first request only takes longer
        reported = answer.get("usage") if isinstance(answer, dict) else None
        usage = usage_of(reported, answer) if isinstance(reported, dict) else Usage()
        self._prefetched[url, key] = (anyio.current_time(), usage)
        while len(self._prefetched) > MAX_PREFETCHED:
            self._prefetched.popitem(last=False)
        return usage


# --- The client -------------------------------------------------------------------------------------------------------
# The agent loop's client of the model servers.

_log = logging.getLogger(__name__)
# For how many conversations the router's token is kept.
MAX_SESSION_TOKENS = 10_000

OnTurn = Callable[[LlmRequest, Completion], None]


@dataclass(frozen=True, slots=True)
class LlmStatistics:
    """Sums over finished answers; `endpoints` shows the present. cached_tokens: of servers that report them."""

    answers: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    endpoints: Mapping[str, EndpointStatistics] | None = None


class LlmClient:
    """Sends requests to the model servers of one configuration. Made by `open_llm`.

    async with open_llm(LlmSettings(endpoints=["http://127.0.0.1:8000/v1"])) as llm:
        request = LlmRequest("task-1", [{"role": "user", "content": "Hello"}])
        async with llm.stream(request) as stream:
            async for delta in stream:
                print(delta.text, end="")
        print(stream.completion.usage)
    """

    def __init__(self, settings: LlmSettings, pool: EndpointPool) -> None:
        self.pool = pool
        self.on_turn: list[OnTurn] = []
        """Called with every finished answer. Their exceptions are logged, not raised."""
        self._settings = settings
        self._model = settings.model
        self._asking: SingleFlight[None, str] = SingleFlight()
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._without_fields: set[str] = set()
        """Endpoints that refused their own engine's fields."""
        self._sums = LlmStatistics()
        self._prefetcher = PrefixPrefetcher(pool, self._ask, timeout=settings.attempt_timeout_s)

    def __repr__(self) -> str:
        return f"<LlmClient {self._model or 'any model'}, {self._sums.answers} answers, {self.pool!r}>"

    @asynccontextmanager
    async def stream(self, request: LlmRequest) -> AsyncIterator[LlmStream]:
        """One answer, piece by piece. Leaving the block stops it. `LlmStream` says what it raises."""
        stream = LlmStream(
            self.pool,
            self._settings,
            session=request.session,
            turn=turn_request(request) if self.pool.admission.is_on else TurnRequest(request.session, 0),
            send=lambda endpoint: self._send(endpoint, request),
            done=lambda completion, attempt: self._done(request, completion, attempt),
        )
        try:
            yield stream
        finally:
            await stream.aclose()

    async def complete(self, request: LlmRequest) -> Completion:
        """One complete answer. Raises the errors of `LlmStream`."""
        async with self.stream(request) as stream:
            async for _ in stream:
                pass
        return stream.completion

    async def prefetch_prefix(self, messages: Sequence[Message], body: Mapping[str, Any]) -> dict[str, Usage | None]:
        """Have every endpoint compute a prefix that many conversations begin with.

        body: the fields that shape the prompt (tools, chat_template_kwargs, ...), as the conversations will send them.
        Concurrent callers with the same prefix share one request per endpoint and return together. Returns each
        endpoint's usage, None where the prefetch failed. It does not raise for that.
        """
        return await self._prefetcher.prefetch(messages, body)

    def raw(self, endpoint: str) -> httpx2.AsyncClient:
        """The endpoint's HTTP client, for requests outside the API; see `EndpointPool.client`."""
        return self.pool.client(endpoint)

    @property
    def known_model(self) -> str | None:
        """The model's name; None before the first request if it is not configured."""
        return self._model

    def forget(self, session: str) -> None:
        """Forget a conversation that sends no more requests."""
        self.pool.router.forget(session)
        self.pool.admission.remove(session)
        self._tokens.pop(session, None)

    def statistics(self) -> LlmStatistics:
        return replace(self._sums, endpoints=self.pool.statistics())

    async def model(self, endpoint: str) -> str:
        """The configured model, or the only one that the endpoint serves. Raises AttemptFailed."""
        if self._model is None:
            self._model = await self._asking.run(None, lambda: self._only_model(endpoint))
        return self._model

    async def _send(self, endpoint: str, request: LlmRequest) -> ChunkStream:
        """Send the request to an endpoint, with the fields of the engine there.

        A caller must never see an error about fields that it did not write. If the engine does not understand the
        request, it is sent again without them. If that works, the endpoint gets none of them any more.
        """
        transport = self.pool.transport(endpoint)
        body = chat_request_body(request, await self.model(endpoint))
        headers = session_headers(request.session)
        if (token := self._tokens.get(request.session)) is not None:
            headers[SESSION_TOKEN_HEADER] = token
        fields = self._engine_fields(endpoint, request)
        try:
            return await transport.stream(with_engine_fields(body, fields), {**headers, **fields.headers})
        except AttemptFailed as failure:
            if not fields.body or failure.status not in UNKNOWN_FIELD or failure.kind is FailureKind.TOO_LONG:
                raise
        chunks = await transport.stream(body, headers)
        self._without_fields.add(endpoint)
        return chunks

    def _engine_fields(self, endpoint: str, request: LlmRequest) -> EngineFields:
        if request.engine_fields is None or endpoint in self._without_fields:
            return EngineFields()
        return request.engine_fields(endpoint)

    async def _ask(self, endpoint: str, body: Json, headers: Mapping[str, str]) -> Any:
        return await self.pool.transport(endpoint).ask({"model": await self.model(endpoint), **body}, headers)

    async def _only_model(self, endpoint: str) -> str:
        names = [str(model["id"]) for model in await self.pool.transport(endpoint).models()]
        if len(names) == 1:
            return names[0]
        listed = ", ".join(repr(name) for name in names[:10]) or "none"
        raise AttemptFailed(
            f"set llm.model: the endpoint serves {listed}", kind=FailureKind.REFUSED, is_endpoint_fault=False
        )

    def _done(self, request: LlmRequest, completion: Completion, attempt: Attempt) -> None:
        self._remember_token(request.session, attempt.headers.get(SESSION_TOKEN_HEADER))
        usage, sums = completion.usage, self._sums
        self._sums = LlmStatistics(
            answers=sums.answers + 1,
            attempts=sums.attempts + completion.attempts,
            prompt_tokens=sums.prompt_tokens + usage.prompt_tokens,
            cached_tokens=sums.cached_tokens + (usage.cached_tokens or 0),
            completion_tokens=sums.completion_tokens + usage.completion_tokens,
        )
        for callback in self.on_turn:
            try:
                callback(request, completion)
            except Exception:
                _log.exception("an observer of turns failed")

    def _remember_token(self, session: str, token: str | None) -> None:
        if token is None or len(token) > MAX_TOKEN_CHARS:
            return
        self._tokens[session] = token
        self._tokens.move_to_end(session)
        while len(self._tokens) > MAX_SESSION_TOKENS:
            self._tokens.popitem(last=False)


@asynccontextmanager
async def open_llm(settings: LlmSettings) -> AsyncIterator[LlmClient]:
    """Open a client of the configured model servers. It sends nothing before the first request."""
    async with open_endpoint_pool(settings) as pool:
        yield LlmClient(settings, pool)
