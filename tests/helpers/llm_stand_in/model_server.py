"""An OpenAI-compatible model server on the loopback interface: scripted answers, a real prefix cache, real sockets.

It runs in a thread of its own, so a test's event loop may be any. Everything of `ModelServer` may be used from
outside that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import uvicorn
from llm_stand_in.answers import Answer, Json
from llm_stand_in.prefix_cache import PrefixCache, render, tokens_of
from llm_stand_in.replies import Reply, metrics_text

PATIENCE_S = 60
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Seen:
    """One request. headers: names in lower case. body: the JSON, {} if there was none."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json


@dataclass
class Load:
    """What `/metrics` tells. dialect: vllm, sglang, or "" for 404."""

    dialect: str = "vllm"
    waiting: int = 0
    running: int | None = None
    """None: the requests that are really being answered."""
    usage: float = 0.0
    blocks: int | None = None
    """Blocks of the cache, of 16 tokens each; None: not reported."""
    preemptions: int = 0
    drafted: int | None = None
    """Tokens drafted so far; None: it does not speculate."""
    accepted: int = 0


@dataclass(frozen=True)
class Counted:
    """Tokens of one request; `cached` is None if `tell_cached` was off."""

    prompt: int
    completion: int
    cached: int | None


class ModelServer:
    """A running stand-in. Answers come from `script`, then from `usual`."""

    def __init__(self, port: int, *, model: str, cache: PrefixCache) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"
        self.port = port
        self.model = model
        self.cache = cache
        self.models: list[str] = [model]
        self.load = Load()
        self.usual: Callable[[Seen], Answer] = lambda _seen: Answer()
        self.pages: dict[str, Json | Callable[[Seen], Json]] = {"/version": {"version": "0.32.0"}, "/health": {}}
        """Other paths, of any method: their JSON."""
        self.tell_cached = True
        self.prefill_s_per_token = 0.0
        """Of uncached prompt tokens, before the first piece."""
        self.seen: list[Seen] = []
        self.counted: list[Counted] = []
        self.running = 0
        """Requests to the model that are being answered."""
        self.most_running = 0
        self.connections: set[int] = set()
        """The clients' ports: one for each connection that was made."""
        self._script: deque[Answer] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<ModelServer {self.url}, {len(self.seen)} requests, {self.running} running>"

    def script(self, *answers: Answer) -> None:
        """The answers to the next requests to the model, in order."""
        with self._changed:
            self._script.extend(answers)

    @property
    def chats(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == CHAT]

    def asked(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    def release(self) -> None:
        """Let go of every answer that is held, those to come included."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._released.set)

    async def wait_until(self, is_so: Callable[[ModelServer], bool]) -> None:
        """Wait for a condition on this server's counts, e.g. `lambda server: server.running == 2`."""
        await anyio.to_thread.run_sync(self.block_until, is_so)

    def block_until(self, is_so: Callable[[ModelServer], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self), PATIENCE_S), f"never came: {self!r}"

    # ---- what the serving side uses

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def until_released(self) -> None:
        await self._released.wait()

    def record(self, seen: Seen, client_port: int) -> None:
        with self._changed:
            self.seen.append(seen)
            self.connections.add(client_port)
            self._changed.notify_all()

    def answer(self, seen: Seen) -> Answer:
        with self._changed:
            return self._script.popleft() if self._script else self.usual(seen)

    def moved(self, by: int) -> None:
        with self._changed:
            self.running += by
            self.most_running = max(self.most_running, self.running)
            self._changed.notify_all()

    def count(self, seen: Seen, answer: Answer) -> tuple[Json, int]:
        """The `usage` object of an answer, and how many prompt tokens had to be computed."""
        prompt = tokens_of(render(seen.body))
        cached = self.cache.lookup(prompt)
        written = [token for piece in (answer.reasoning, *answer.pieces) for token in tokens_of(piece)]
        limit = seen.body.get("max_tokens") or seen.body.get("max_completion_tokens")
        made = min(max(1, len(written)), limit or len(written) or 1)
        self.cache.add(prompt + written)
        with self._changed:
            self.counted.append(Counted(len(prompt), made, cached if self.tell_cached else None))
            self._changed.notify_all()
        usage: Json = {"prompt_tokens": len(prompt), "completion_tokens": made, "total_tokens": len(prompt) + made}
        if self.tell_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return answer.usage or usage, len(prompt) - cached


@dataclass
class _App:
    """The ASGI side: reads a request, finds its answer."""

    server: ModelServer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        content = b""
        while (event := await receive()).get("more_body") or event.get("body"):
            content += event.get("body", b"")
            if not event.get("more_body"):
                break
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body = json.loads(content) if content else {}
        seen = Seen(scope["method"], scope["path"], headers, body)
        self.server.record(seen, scope["client"][1])
        await self._answer(seen, Reply(send), receive)

    async def _live(self, receive: Any, send: Any) -> None:
        self.server.bind(asyncio.get_running_loop())
        for told in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{told}.complete"})

    async def _answer(self, seen: Seen, reply: Reply, receive: Any) -> None:
        server = self.server
        if seen.path in (CHAT, COMPLETION):
            await self._generate(seen, reply, receive)
        elif seen.path == "/metrics" and server.load.dialect:
            await reply.text(metrics_text(server.load, server.running))
        elif seen.path == "/v1/models":
            await reply.json({"object": "list", "data": [{"id": name, "object": "model"} for name in server.models]})
        elif seen.path == "/tokenize":
            tokens = [hash(token) & 0xFFFF for token in tokens_of(render(seen.body))]
            await reply.json({"tokens": tokens, "count": len(tokens)})
        elif seen.path in server.pages:
            page = server.pages[seen.path]
            await reply.json(page(seen) if callable(page) else page)
        else:
            await reply.json({"detail": "Not Found"}, status=404)

    async def _generate(self, seen: Seen, reply: Reply, receive: Any) -> None:
        answer = self.server.answer(seen)
        self.server.moved(1)
        writing = asyncio.ensure_future(self._write(seen, answer, reply))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, leaving):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
            self.server.moved(-1)
        with contextlib.suppress(asyncio.CancelledError):
            await writing

    async def _write(self, seen: Seen, answer: Answer, reply: Reply) -> None:
        if answer.hold and answer.after == 0:
            await self.server.until_released()
        if answer.raw is not None or answer.status != 200:
            await reply.whole(answer)
            return
        usage, computed = self.server.count(seen, answer)
        if self.server.prefill_s_per_token:
            await asyncio.sleep(computed * self.server.prefill_s_per_token)
        if not seen.body.get("stream"):
            await reply.completion(seen, answer, usage, self.server.model)
            return
        wants_usage = (seen.body.get("stream_options") or {}).get("include_usage")
        await reply.stream(
            seen,
            answer,
            usage if wants_usage else None,
            self.server.model,
            hold=self.server.until_released,
        )


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def open_model_server(
    *, model: str = "m", block_tokens: int = 16, cache_blocks: int = 4096, port: int = 0
) -> Iterator[ModelServer]:
    """A stand-in that serves as long as the block lasts. port: 0 for any."""
    listener = socket.create_server(("127.0.0.1", port))
    server = ModelServer(
        listener.getsockname()[1], model=model, cache=PrefixCache(block_tokens=block_tokens, blocks=cache_blocks)
    )
    # A handler that raises is how a connection is cut; that is no news.
    config = uvicorn.Config(
        _App(server), log_level="critical", lifespan="on", timeout_graceful_shutdown=1, ws="none", http="h11"
    )
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]}, name="model server")
    thread.start()
    try:
        yield server
    finally:
        server.release()
        runner.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()
    assert not thread.is_alive()
