"""The proxy's ASGI application: its paths, the limits of request bodies, and what a client's disconnect does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import anyio
from prometheus_client.core import Metric
from starlette.types import Receive, Scope, Send

from toolhub.config.llm import LlmSettings
from toolhub.model import FairShareKey
from toolhub_agent.kv_hints.hinter import Hinter, open_hints
from toolhub_agent.llm.endpoint_pool import EndpointPool, open_endpoint_pool
from toolhub_agent.proxy.forward import Forwarder, RoutedRequest
from toolhub_agent.proxy.http_messages import (
    CLIENT_CLOSED_REQUEST,
    ClientResponse,
    Header,
    HTTPError,
    InvalidBody,
    ProxyRequest,
    header_text,
    read_object,
)
from toolhub_agent.proxy.metrics import ProxyCounters, metric_families
from toolhub_agent.proxy.prefix_index import digest_of_text
from toolhub_agent.proxy.sessions import SessionRegistry, session_name
from toolhub_agent.types import Json

if TYPE_CHECKING:
    from toolhub import Hub

# --- The application --------------------------------------------------------------------------------------------------
# The proxy forwards these paths only. Engines have others, which are for their operators.


METHODS = {"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/models": "GET"}
# A prompt of a million tokens is a few MB; images come inline.
MAX_BODY_BYTES = 64 << 20
# The total of all request bodies in memory, so that a flood of large requests cannot exhaust it.
MAX_BODIES_BYTES = 1 << 30
# Text completions whose prompts begin with the same characters go to the same endpoint.
_PROMPT_CHARS = 2048


class ProxyApp:
    """The part of OpenAI's API below `/v1` that agents need."""

    def __init__(self, forwarder: Forwarder, registry: SessionRegistry, counters: ProxyCounters) -> None:
        self._forwarder = forwarder
        self._registry = registry
        self._counters = counters
        self._held = 0

    def __repr__(self) -> str:
        return f"<LLM proxy, {self._counters.in_flight} requests in flight, {self._registry!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        reply = ClientResponse(send)
        path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
        self._counters.in_flight += 1
        status = CLIENT_CLOSED_REQUEST
        try:
            try:
                await self._route(path, scope, receive, reply)
            except HTTPError as refusal:
                await reply.refuse(refusal)
            status = reply.status if reply.is_complete else CLIENT_CLOSED_REQUEST
        finally:
            self._counters.in_flight -= 1
            self._counters.requests[path if path in METHODS else "other", status] += 1

    async def _route(self, path: str, scope: Scope, receive: Receive, reply: ClientResponse) -> None:
        method = METHODS.get(path)
        if method is None:
            raise HTTPError(404, f"the LLM proxy serves only {', '.join(METHODS)}")
        if scope["method"] != method:
            raise HTTPError(405, f"{path} takes {method} only", headers=[(b"allow", method.encode())])
        headers = tuple(scope["headers"])
        query: bytes = scope["query_string"]
        if method == "GET":
            await self._answer(ProxyRequest(path.removeprefix("/v1"), headers=headers, query=query), receive, reply)
            return
        async with self._body(headers, receive) as raw:
            if raw is not None:
                asked = ProxyRequest(path.removeprefix("/v1"), raw, _parsed_body(raw), headers, query)
                await self._answer(asked, receive, reply)

    async def _answer(self, asked: ProxyRequest, receive: Receive, reply: ClientResponse) -> None:
        arrived_at = perf_counter()
        messages = asked.messages if asked.path == "/chat/completions" else None
        conversation = self._registry.request(asked.headers, messages) if messages is not None else None
        affinity = conversation.affinity if conversation is not None else _affinity_key(asked)
        share = self._registry.share_of(conversation) if conversation is not None else FairShareKey()
        turn = RoutedRequest(asked, affinity, conversation, arrived_at, share)
        try:
            await _while_connected(receive, lambda: self._forwarder.run(turn, reply))
        finally:
            if conversation is not None and conversation.is_asking:
                conversation.leave()

    @asynccontextmanager
    async def _body(self, headers: Sequence[Header], receive: Receive) -> AsyncIterator[bytes | None]:
        """Read the request's body; None if the client disconnected before its end.

        The body counts towards the total while it is held.
        """
        if header_text(headers, b"content-encoding") not in ("", "identity"):
            raise HTTPError(415, "the LLM proxy cannot read compressed bodies; send the body without content-encoding")
        length = header_text(headers, b"content-length")
        if length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
            raise _too_large()
        pieces: list[bytes] = []
        held = 0
        try:
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    yield None
                    return
                pieces.append(piece := event.get("body", b""))
                held += len(piece)
                self._held += len(piece)
                if held > MAX_BODY_BYTES:
                    raise _too_large()
                if self._held > MAX_BODIES_BYTES:
                    raise HTTPError.for_now(429, "too many large requests at once")
                if not event.get("more_body"):
                    break
            yield b"".join(pieces)
        finally:
            self._held -= held


async def _while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work. If the client disconnects, cancel the work, so that the engine stops too."""
    refusals: list[HTTPError] = []

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            await work()
        except HTTPError as refusal:
            refusals.append(refusal)  # a task group would wrap it in an exception group
        tasks.cancel_scope.cancel()
    if refusals:
        raise refusals[0]


def _parsed_body(raw: bytes) -> Json:
    try:
        return read_object(raw)
    except InvalidBody as exc:
        raise HTTPError(400, str(exc)) from None


def _too_large() -> HTTPError:
    # No `connection: close`: closing before all was read resets the connection, and the client loses the answer.
    return HTTPError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")


def _affinity_key(asked: ProxyRequest) -> str:
    prompt = asked.body.get("prompt")
    beginning = prompt[:_PROMPT_CHARS] if isinstance(prompt, str) else ""
    return session_name(asked.headers) or digest_of_text(beginning).hex()


# --- The proxy of a running hub ---------------------------------------------------------------------------------------
# The proxy as `toolhub serve` runs it: its parts are opened and closed together.

PATH = "/llm"


class LlmProxy:
    """A `toolhub.extensions.Frontend`."""

    path = PATH

    def __init__(self, pool: EndpointPool, hints: Hinter, registry: SessionRegistry, settings: LlmSettings) -> None:
        self._pool = pool
        self._hints = hints
        self._registry = registry
        self._counters = ProxyCounters()
        self._forwarder = Forwarder(pool, settings, hints, self._counters)
        self.app = ProxyApp(self._forwarder, registry, self._counters)

    def __repr__(self) -> str:
        return f"<LlmProxy {self.app!r}>"

    def announcement(self) -> str:
        return "LLM proxy"

    def collect(self) -> Iterator[Metric]:
        return metric_families(self._counters, self._pool.statistics(), self._hints.statistics(), len(self._registry))


@asynccontextmanager
async def open_proxy(hub: Hub, settings: LlmSettings) -> AsyncIterator[LlmProxy]:
    """Open the proxy of a running hub. Before the first request it sends nothing and runs no timer."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(open_endpoint_pool(settings))
        hints = await stack.enter_async_context(
            open_hints(
                settings.hints,
                engine=settings.engine,
                http=pool.client,
                headers_of=lambda session: registry.headers_of(session),
                load_of=pool.load,
                may_prefetch=pool.admission.may_hint,
            )
        )
        registry = SessionRegistry(hub, hints, forget=pool.router.forget, ended=pool.admission.remove)

        def paused(task_id: str) -> str:
            pauses = pool.admission.pauses()
            return next((pauses[name] for name in registry.names_of(task_id) if name in pauses), "")

        hub.pauses.append(paused)
        stack.callback(hub.pauses.remove, paused)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(registry.run, name="conversations of the LLM proxy")
        for observer in (hints.durations, registry):
            hub.observers.append(observer)
            stack.callback(hub.observers.remove, observer)
        yield LlmProxy(pool, hints, registry, settings)
