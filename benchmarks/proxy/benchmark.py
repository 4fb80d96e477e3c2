"""What does the LLM proxy add to the time to the first byte? Direct requests and requests through it take turns."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio
import httpx2

from benchmarks.common.hub_process import HttpHub
from benchmarks.common.measure import cpu_seconds, median, percentile
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target
from benchmarks.common.subprocess_worker import Worker
from benchmarks.llm.scripted_agent import Served
from benchmarks.proxy.upstream import ANSWER
from benchmarks.questions import QUESTIONS

_RESULT_BYTES = 1500
_TIMEOUT_S = 60.0
_DIRECT, _OFF, _ADMISSION = "direct", "LLM proxy", "LLM proxy with admission"


@dataclass(frozen=True)
class PromptSize:
    """most_ms: what the proxy may add at this size."""

    kilobytes: int
    most_ms: float


@dataclass(frozen=True)
class ProxyScale:
    """turns: of each conversation, after one that is not counted."""

    sizes: Sequence[PromptSize] = (PromptSize(12, 1.5), PromptSize(200, 3.0))
    conversations: int = 64
    turns: int = 6


class Conversation:
    """An agent's messages. Each turn appends an answer and a tool result, and about as much is there to begin with."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self._pick = random.Random(name)
        self._messages: list[Json] = [
            {"role": "system", "content": "You are an agent. " * 50},
            {"role": "user", "content": name},
        ]
        size = len(json.dumps(self._messages))
        while size < size_bytes:
            before = len(self._messages)
            self.note_answer()
            size += len(json.dumps(self._messages[before:]))

    def body(self) -> bytes:
        """The next request."""
        return json.dumps({"model": "m", "messages": self._messages, "stream": True}).encode()

    def note_answer(self) -> None:
        call = {"id": "call", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        words = " ".join(self._pick.choice(("seven", "oak", "river", "paper")) for _ in range(_RESULT_BYTES // 6))
        self._messages += [
            {"role": "assistant", "content": ANSWER, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call", "content": words},
        ]


@dataclass
class FirstBytes:
    """Of one way and size. added_ms: to the direct request of the same turn. cpu_s: of the proxy's process."""

    ms: list[float] = field(default_factory=list)
    added_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0


def run(scale: ProxyScale) -> Outcome:
    found = {size: anyio.run(_measure, size, scale) for size in scale.sizes}
    rows = [_row(size, way, one) for size, ways in found.items() for way, one in ways.items()]
    targets = [
        Target(f"{size.kilobytes} KB, {way}: added to the first byte, p50", median(one.added_ms), size.most_ms, "ms")
        for size, ways in found.items()
        for way, one in ways.items()
        if way != _DIRECT
    ]
    notes = [
        f"A model server that answers at once, `toolhub serve` and the client are processes of their own on one "
        f"machine. {scale.conversations} conversations, each known to the proxy from its first turn, take turns; one "
        "request at a time. Each turn of each conversation is asked directly and then through each proxy, with the "
        "same bytes. The first byte is that of the answer's body.",
        "With admission: `llm.admission.enabled`, and all conversations fit. CPU is that of the proxy's process, in "
        "steps of 10 ms.",
    ]
    raw = {f"{size.kilobytes} KB, {way}": vars(one) for size, ways in found.items() for way, one in ways.items()}
    return Outcome([Table("Time to the first byte", _COLUMNS, rows)], targets, notes, raw)


_COLUMNS = [
    Column("size", "prompt"),
    Column("way", "way"),
    Column("p50_ms", "p50 ms", 2),
    Column("added_ms", "added p50 ms", 2),
    Column("added_p95_ms", "p95 ms", 2),
    Column("cpu_ms", "proxy's CPU ms/request", 2),
    Column("requests", "requests"),
]


def _row(size: PromptSize, way: str, found: FirstBytes) -> Json:
    is_proxy = way != _DIRECT
    return {
        "size": f"{size.kilobytes} KB",
        "way": way,
        "p50_ms": median(found.ms),
        "added_ms": median(found.added_ms) if is_proxy else None,
        "added_p95_ms": percentile(found.added_ms, 0.95) if is_proxy else None,
        "cpu_ms": found.cpu_s / len(found.ms) * 1e3 if is_proxy else None,
        "requests": len(found.ms),
    }


async def _measure(size: PromptSize, scale: ProxyScale) -> dict[str, FirstBytes]:
    conversations = [Conversation(f"agent {n}", size.kilobytes * 1000) for n in range(scale.conversations)]
    with ExitStack() as stack:
        upstream = stack.enter_context(Worker("benchmarks.proxy.upstream:open_upstream", {}, uvloop=True))
        urls, pids = {_DIRECT: upstream.ask({})["address"]}, {}
        for way, is_on in ((_OFF, False), (_ADMISSION, True)):
            settings = Served(urls[_DIRECT]).settings(admission={"enabled": is_on})
            hub = stack.enter_context(HttpHub({}, llm=settings.model_dump(mode="json", exclude_unset=True)))
            urls[way], pids[way] = f"{hub.url}/llm/v1", hub.pid
        found = {way: FirstBytes() for way in urls}
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http:
            for body in _bodies(conversations, turns=1):
                for url in urls.values():
                    await _first_byte_ms(http, url, body)
            before = {way: cpu_seconds(pid) for way, pid in pids.items()}
            for body in _bodies(conversations, scale.turns):
                for way, url in urls.items():
                    ms = await _first_byte_ms(http, url, body)
                    found[way].ms.append(ms)
                    found[way].added_ms.append(ms - found[_DIRECT].ms[-1])
            for way, pid in pids.items():
                found[way].cpu_s = cpu_seconds(pid) - before[way]
    return found


def _bodies(conversations: Sequence[Conversation], turns: int) -> Iterator[bytes]:
    """Of each turn of each conversation. An answer to it is noted."""
    for _ in range(turns):
        for conversation in conversations:
            yield conversation.body()
            conversation.note_answer()


async def _first_byte_ms(http: httpx2.AsyncClient, url: str, body: bytes) -> float:
    began = time.perf_counter()
    headers = {"content-type": "application/json"}
    async with http.stream("POST", f"{url}/chat/completions", content=body, headers=headers) as response:
        pieces = response.aiter_raw()
        await anext(pieces)
        seconds = time.perf_counter() - began
        response.raise_for_status()
        async for _ in pieces:
            pass
    return seconds * 1e3


BENCHMARK = Benchmark(
    "proxy",
    QUESTIONS["proxy"],
    run,
    full=ProxyScale(),
    quick=ProxyScale(turns=2),
)
