"""The door's ASGI application: which paths there are, how large a request may be, and what a client's hang-up does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

import anyio
from starlette.types import Receive, Scope, Send

from toolhub_agent.door.chain import digest_of_text
from toolhub_agent.door.exchange import Exchange
from toolhub_agent.door.headers import Raw, value_of
from toolhub_agent.door.passage import Turn
from toolhub_agent.door.registry import Registry, group_of
from toolhub_agent.door.reply import HUNG_UP, Refusal, Reply
from toolhub_agent.door.request import Asked, Unreadable, read_object
from toolhub_agent.door.statistics import Counts
from toolhub_agent.model import Json

# Nothing else passes: what an engine has beside these is for whoever runs it.
METHODS = {"/v1/chat/completions": "POST", "/v1/completions": "POST", "/v1/models": "GET"}
# A prompt of a million tokens is a few MB; images come inline.
LARGEST_BODY = 64 << 20
# Of all requests that are here at once, so that a flood of large ones cannot take the machine's memory.
LARGEST_BODIES = 1 << 30
# Completions of plain text with the same beginning go to the same endpoint.
_PROMPT_CHARS = 2048


class App:
    """OpenAI's API below `/v1`, as far as an agent needs it."""

    def __init__(self, exchange: Exchange, registry: Registry, counts: Counts) -> None:
        self._exchange = exchange
        self._registry = registry
        self._counts = counts
        self._held = 0

    def __repr__(self) -> str:
        return f"<LLM door, {self._counts.in_flight} requests in flight, {self._registry!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        reply = Reply(send)
        path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
        self._counts.in_flight += 1
        status = HUNG_UP
        try:
            try:
                await self._route(path, scope, receive, reply)
            except Refusal as refusal:
                await reply.refuse(refusal)
            status = reply.status if reply.is_complete else HUNG_UP
        finally:
            self._counts.in_flight -= 1
            self._counts.requests[path if path in METHODS else "other", status] += 1

    async def _route(self, path: str, scope: Scope, receive: Receive, reply: Reply) -> None:
        method = METHODS.get(path)
        if method is None:
            raise Refusal(404, f"the LLM door has {', '.join(METHODS)} and nothing else")
        if scope["method"] != method:
            raise Refusal(405, f"{path} takes {method} only", headers=[(b"allow", method.encode())])
        headers = tuple(scope["headers"])
        query: bytes = scope["query_string"]
        if method == "GET":
            await self._answer(Asked(path.removeprefix("/v1"), headers=headers, query=query), receive, reply)
            return
        async with self._body(headers, receive) as raw:
            if raw is not None:
                asked = Asked(path.removeprefix("/v1"), raw, _object_in(raw), headers, query)
                await self._answer(asked, receive, reply)

    async def _answer(self, asked: Asked, receive: Receive, reply: Reply) -> None:
        arrived_at = perf_counter()
        messages = asked.messages if asked.path == "/chat/completions" else None
        conversation = self._registry.request(asked.headers, messages) if messages is not None else None
        affinity = conversation.affinity if conversation is not None else _affinity_of(asked)
        turn = Turn(asked, affinity, conversation, arrived_at)
        try:
            await _while_connected(receive, lambda: self._exchange.run(turn, reply))
        finally:
            if conversation is not None and conversation.is_asking:
                conversation.leave()

    @asynccontextmanager
    async def _body(self, headers: Sequence[Raw], receive: Receive) -> AsyncIterator[bytes | None]:
        """The request's body, None if the client left before its end. Counted for as long as it is held."""
        if value_of(headers, b"content-encoding") not in ("", "identity"):
            raise Refusal(415, "a compressed body cannot be read here; send it as it is")
        length = value_of(headers, b"content-length")
        if length.isdigit() and int(length[:20]) > LARGEST_BODY:
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
                if held > LARGEST_BODY:
                    raise _too_large()
                if self._held > LARGEST_BODIES:
                    raise Refusal.for_now(429, "too many large requests at once")
                if not event.get("more_body"):
                    break
            yield b"".join(pieces)
        finally:
            self._held -= held


async def _while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work; give it up when the client hangs up, and with it what an engine does for it."""
    refusals: list[Refusal] = []

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            await work()
        except Refusal as refusal:
            refusals.append(refusal)  # kept out of the task group, which would wrap it
        tasks.cancel_scope.cancel()
    if refusals:
        raise refusals[0]


def _object_in(raw: bytes) -> Json:
    try:
        return read_object(raw)
    except Unreadable as exc:
        raise Refusal(400, str(exc)) from None


def _too_large() -> Refusal:
    # No `connection: close`: a connection that is closed before all was read is reset, and the answer with it.
    return Refusal(413, f"the body is larger than {LARGEST_BODY} bytes")


def _affinity_of(asked: Asked) -> str:
    prompt = asked.body.get("prompt")
    beginning = prompt[:_PROMPT_CHARS] if isinstance(prompt, str) else ""
    return group_of(asked.headers) or digest_of_text(beginning).hex()
