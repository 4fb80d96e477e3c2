"""Warming: a prefix that many tasks share is computed once, before they all ask for it at the same time.

Without it the first requests of a sweep, all with the same system prompt and tools, each compute that prefix, since
none of them has finished when the others start.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import anyio

from toolhub_agent.errors import LlmUnavailable
from toolhub_agent.llm.failures import AttemptFailed
from toolhub_agent.llm.fleet import Fleet
from toolhub_agent.llm.headers import session_headers
from toolhub_agent.llm.single_flight import SingleFlight
from toolhub_agent.llm.usage import usage_of
from toolhub_agent.model import Json, Message, Usage

T = TypeVar("T")

# A prefix is taken to stay in the cache this long; a sweep's own tasks keep it there afterwards.
WARM_S = 300.0
MOST_KNOWN = 1000


def prefix_key(messages: Sequence[Message], body: Mapping[str, Any]) -> str:
    """The same for requests that begin with the same prompt. body: the fields that shape it."""
    written = json.dumps([list(messages), dict(body)], ensure_ascii=False, separators=(",", ":"), default=str)
    return blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def together(items: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """A sweep's tasks in an order in which those with the same prefix start together; otherwise as they came."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [item for group in groups.values() for item in group]


class Warmer:
    """Warms prefixes, each once per endpoint and while."""

    def __init__(self, fleet: Fleet, send: Callable[[str, Json, Mapping[str, str]], Any], *, timeout: float) -> None:
        """send: asks an endpoint, not streamed. timeout: for one warm-up, its wait for a slot included."""
        self._fleet = fleet
        self._send = send
        self._timeout = timeout
        self._flights: SingleFlight[tuple[str, str], Usage | None] = SingleFlight()
        self._warm: OrderedDict[tuple[str, str], tuple[float, Usage]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Warmer {len(self._warm)} prefixes, {self._flights!r}>"

    async def warm(self, messages: Sequence[Message], body: Mapping[str, Any]) -> dict[str, Usage | None]:
        """Return once every healthy endpoint has the prefix, and what that cost; None where it did not work."""
        key = prefix_key(messages, body)
        found: dict[str, Usage | None] = {}

        async def one(url: str) -> None:
            found[url] = await self._one(url, key, {**body, "messages": list(messages)})

        async with anyio.create_task_group() as tasks:
            for url in self._fleet.endpoints.urls:
                if self._fleet.endpoints.is_healthy(url):
                    tasks.start_soon(one, url)
        return found

    async def _one(self, url: str, key: str, body: Json) -> Usage | None:
        at, usage = self._warm.get((url, key), (0.0, None))
        if usage is not None and anyio.current_time() - at < WARM_S:
            return usage
        return await self._flights.run((url, key), lambda: self._ask(url, key, body))

    async def _ask(self, url: str, key: str, body: Json) -> Usage | None:
        deadline = anyio.current_time() + self._timeout
        try:
            async with self._fleet.slots.hold(url, deadline=deadline):
                with anyio.fail_at(deadline):
                    answer = await self._send(url, {**body, "max_tokens": 1, "stream": False}, session_headers(key))
        except (AttemptFailed, LlmUnavailable, TimeoutError):
            return None  # a prefix that is cold only costs time
        told = answer.get("usage") if isinstance(answer, dict) else None
        usage = usage_of(told, answer) if isinstance(told, dict) else Usage()
        self._warm[url, key] = (anyio.current_time(), usage)
        while len(self._warm) > MOST_KNOWN:
            self._warm.popitem(last=False)
        return usage
