"""The stage of these tests: a model server in virtual time, and an agent that tells its hinter what it does.

`Engine` is a stand-in: an OpenAI-compatible server inside the test, with a real least-recently-used block cache and a
ChatML renderer, whose prefills take time on the test's clock. It follows vLLM's and llama.cpp's documented answers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import anyio
import httpx2
from llm_stand_in.prefix_cache import PrefixCache, render, tokens_of
from toolhub_agent.kv_hints.engines import PREFETCH_ID_PREFIX
from toolhub_agent.kv_hints.hinter import Hinter, open_hints
from toolhub_agent.kv_hints.signals import (
    AboutToResume,
    Prompt,
    Resumed,
    SessionFinal,
    ToolResultReady,
    ToolWaitStarted,
    TurnFinished,
)
from toolhub_agent.types import Usage
from trio.testing import MockClock

from toolhub.config.llm import HintSettings

URL = "http://engine.test/v1"
BLOCK = 16
PER_TOKEN_S = 0.001
OVERHEAD_S = 0.05
TOOLS = [{"type": "function", "function": {"name": "s-search", "parameters": {"type": "object"}}}]
Json = dict[str, Any]


def virtual_time() -> tuple[str, dict[str, Any]]:
    """The anyio backend whose clock jumps to the next deadline as soon as every task is blocked."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


def text_of(tokens: int, name: str = "w") -> str:
    """A text that the stand-in counts as so many tokens, and that begins like no other with another name."""
    return " ".join([crc32(name.encode()).to_bytes(4, "big").hex()[:6], *(f"x{n % 10_000}" for n in range(tokens - 1))])


@dataclass
class Engine:
    """seen: (path, body, headers) of every request. pages: other paths' answers, or a function of the body."""

    cache: PrefixCache = field(default_factory=lambda: PrefixCache(block_tokens=BLOCK, blocks=4096))
    pages: dict[str, Json | Callable[[Json], Json]] = field(default_factory=lambda: {"/version": {"version": "0.32.0"}})
    renders: Callable[[Json], str] = render
    tells_cached: bool = True
    refuse: Callable[[str, Json], tuple[int, Json] | None] = lambda path, body: None
    seen: list[tuple[str, Json, httpx2.Headers]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    running: int = 0
    most_prefetches: int = 0
    cut_short: int = 0
    _prefetches: int = 0

    def client(self, _endpoint: str = URL) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.handle))

    def asked(self, path: str) -> list[Json]:
        return [body for seen, body, _ in self.seen if seen == path]

    @property
    def prefetches(self) -> list[Json]:
        return [body for body in self.asked("/v1/chat/completions") if body["max_tokens"] == 1]

    @property
    def prefetch_times(self) -> list[float]:
        pairs = zip(self.seen, self.times, strict=True)
        return [at for (path, body, _), at in pairs if path.endswith("chat/completions") and body["max_tokens"] == 1]

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content or b"{}")
        path = request.url.path
        self.seen.append((path, body, request.headers))
        self.times.append(anyio.current_time())
        if (refusal := self.refuse(path, body)) is not None:
            return httpx2.Response(refusal[0], json=refusal[1])
        if path == "/v1/chat/completions":
            return httpx2.Response(200, json=await self.generate(body, request.headers))
        if path == "/tokenize" and "/tokenize" not in self.pages and "messages" in body:
            return httpx2.Response(200, json={"tokens": [crc32(t.encode()) for t in tokens_of(self.renders(body))]})
        page = self.pages.get(path)
        if page is None:
            return httpx2.Response(404, json={"detail": "Not Found"})
        return httpx2.Response(200, json=page(body) if callable(page) else page)

    async def generate(self, body: Json, headers: httpx2.Headers) -> Json:
        """Prefill in blocks, each in the cache as soon as it is computed, as with chunked prefill."""
        tokens = tokens_of(self.renders(body))
        cached = self.cache.lookup(tokens)
        is_prefetch = headers.get("x-request-id", "").startswith(PREFETCH_ID_PREFIX)
        self.running, self._prefetches = self.running + 1, self._prefetches + is_prefetch
        self.most_prefetches = max(self.most_prefetches, self._prefetches)
        try:
            await anyio.sleep(OVERHEAD_S)
            for end in range(cached, len(tokens), 64 * BLOCK):
                size = min(64 * BLOCK, len(tokens) - end)
                await anyio.sleep(size * PER_TOKEN_S)
                self.cache.add(tokens[: end + size])
        except BaseException:
            self.cut_short += 1
            raise
        finally:
            self.running, self._prefetches = self.running - 1, self._prefetches - is_prefetch
        usage: Json = {"prompt_tokens": len(tokens), "completion_tokens": 1}
        if self.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"choices": [{"message": {"role": "assistant", "content": "ok"}}], "usage": usage}


@dataclass
class Agent:
    """A conversation of native tool calls; each turn is a request of its own, timed on the test's clock."""

    engine: Engine
    hints: Hinter
    name: str = "task-1"
    prompt_tokens: int = 6000
    messages: list[Json] = field(default_factory=list)
    body: Json = field(default_factory=lambda: {"model": "m", "tools": TOOLS, "tool_choice": "auto"})
    ttfts: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    url: str = URL

    def __post_init__(self) -> None:
        self.messages = self.messages or [
            {"role": "system", "content": text_of(self.prompt_tokens, self.name)},
            {"role": "user", "content": f"question of {self.name}"},
        ]

    @property
    def prompt(self) -> Prompt:
        return Prompt(tuple(self.messages), self.body, self.url)

    async def turn(self, calls: int = 1, *, resumed: bool = False) -> None:
        """Ask the model; its answer has so many calls, as the test has it."""
        if resumed:
            self.hints.signal(AboutToResume(self.name))
        began = anyio.current_time()
        async with self.engine.client() as http:
            body = {**self.body, "messages": self.messages, "max_tokens": 100}
            answer = (await http.post(f"{self.url}/chat/completions", json=body, timeout=None)).json()
        told = answer["usage"]
        cached = told.get("prompt_tokens_details", {}).get("cached_tokens")
        usage, ttft = Usage(told["prompt_tokens"], 20, cached), anyio.current_time() - began
        self.ttfts.append(ttft)
        self.usages.append(usage)
        if resumed:
            self.hints.signal(Resumed(self.name, usage, ttft))
        self.messages.append(
            {
                "role": "assistant",
                "content": f"thought {len(self.messages)}",
                "tool_calls": [
                    {"id": f"call_{n}", "type": "function", "function": {"name": "s-search", "arguments": "{}"}}
                    for n in range(calls)
                ],
            }
        )
        self.hints.signal(TurnFinished(self.name, self.prompt, usage, ttft))

    async def wait(self, *seconds: float, tokens: int = 50, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run tools that take so long, in call order and sorted. meanwhile: called when half a second has passed."""
        self.hints.signal(ToolWaitStarted(self.name, tuple(("s", f"tool{n}") for n in range(len(seconds)))))
        await anyio.sleep(0.5)
        meanwhile()
        passed = 0.5
        for number, until in enumerate(seconds):
            await anyio.sleep(until - passed)
            passed = until
            self.messages.append(
                {
                    "role": "tool",
                    "tool_call_id": f"call_{number}",
                    "content": text_of(tokens, f"{self.name} {len(self.messages)}"),
                }
            )
            left = len(seconds) - number - 1
            self.hints.signal(ToolResultReady(self.name, "s", f"tool{number}", until, left, self.prompt))

    async def step(self, *seconds: float, **more: Any) -> float:
        """Tools, then the next turn; its TTFT."""
        await self.wait(*(seconds or (12.0,)), **more)
        await self.turn(resumed=True)
        return self.ttfts[-1]

    def end(self) -> None:
        self.hints.signal(SessionFinal(self.name))


def tools_take(hints: Hinter, *seconds: float, server: str = "s") -> None:
    """Teach the predictor: tool0 takes the first, tool1 the second ..."""
    for number, each in enumerate(seconds):
        for _ in range(10):
            hints.durations.observe(server, f"tool{number}", each)


@asynccontextmanager
async def opened(
    engine: Engine, *, kind: Any = "vllm", more: Json | None = None, **settings: Any
) -> AsyncIterator[Hinter]:
    """Hints for one endpoint; `on` unless the settings say otherwise."""
    chosen = HintSettings(**{"mode": "on", **settings})
    async with engine.client() as http:
        async with open_hints(
            chosen, engine=kind, http=lambda _url: http, headers_of=lambda name: {"X-Session-ID": name}, **(more or {})
        ) as hints:
            yield hints


@asynccontextmanager
async def after_first_turn(engine: Engine, *tool_seconds: float, **options: Any) -> AsyncIterator[Agent]:
    """An agent after its first turn, which called a tool for each of `tool_seconds`; its hints know these durations."""
    async with opened(engine, **options) as hints:
        tools_take(hints, *tool_seconds)
        agent = Agent(engine, hints)
        await agent.turn(calls=len(tool_seconds))
        yield agent
