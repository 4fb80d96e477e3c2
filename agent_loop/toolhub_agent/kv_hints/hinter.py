"""Turns an agent's signals into hints for its model servers. The agent never waits for a hint.

    async with open_hints(settings, engine="auto", http=llm.raw, headers_of=session_headers) as hints:
        hints.signal(TurnFinished(...))          # at once
        hub.observers.append(hints.durations)    # optional: the hub's own measurements

`engine_fields` returns what to add to a conversation's own next request, so that the engine knows the conversation and
keeps its cache.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from toolhub_agent.kv_hints.client import HintContext, HintStatistics
from toolhub_agent.kv_hints.engines import LMCacheClient
from toolhub_agent.kv_hints.estimates import ToolDurations
from toolhub_agent.kv_hints.session import HintSession
from toolhub_agent.kv_hints.signals import Signal, ToolResultReady, ToolWaitStarted, TurnFinished
from toolhub_agent.types import EngineFields

if TYPE_CHECKING:
    import httpx2

    from toolhub.config.llm import EngineName, HintSettings

# Each session holds the prompt of one conversation. No engine serves this many conversations at once.
MAX_SESSIONS = 4096


class Hinter:
    """A `SignalSink`. durations: predicts tool durations; it is an observer of a hub's calls."""

    def __init__(self, context: HintContext, workers: anyio.abc.TaskGroup) -> None:
        self.durations = context.durations
        self._context = context
        self._workers = workers
        self._sessions: dict[str, HintSession] = {}
        self._left = anyio.Event()
        self._is_open = context.settings.mode != "off"

    def __repr__(self) -> str:
        return f"<Hinter, {len(self._sessions)} sessions, {len(self._context.endpoints)} endpoints>"

    def signal(self, signal: Signal) -> None:
        """Pass the signal to its session. The session's worker sends what follows from it."""
        if not self._is_open:
            return
        self._context.counters.signals += 1
        if isinstance(signal, ToolResultReady):
            self.durations.observe_reported(signal.server, signal.tool, signal.seconds)
        conversation = self._sessions.get(signal.session)
        if conversation is None:
            if not isinstance(signal, TurnFinished | ToolWaitStarted):
                return
            if len(self._sessions) >= MAX_SESSIONS:
                self._context.counters.dropped += 1
                return
            conversation = self._open(signal.session)
        conversation.take(signal)

    def engine_fields(self, session: str, endpoint: str) -> EngineFields:
        """Headers and body fields for the session's next request to `endpoint`. They ask the engine to keep its cache.

        They contain only what the server accepts, because the adapter detected that first.
        """
        found = self._context.endpoint(endpoint) if self._is_open else None
        if found is None or found.adapter is None:
            return EngineFields()
        conversation = self._sessions.get(session)
        ttl = self._context.retention(found, conversation.prefix_tokens if conversation else 0)
        fields = found.adapter.engine_fields(session, ttl=ttl)
        self._context.counters.pins += "vllm_xargs" in fields.body
        return fields

    def statistics(self) -> HintStatistics:
        endpoints = self._context.endpoints.values()
        return self._context.counters.freeze(
            sessions=len(self._sessions),
            disabled={each.url: why for each in endpoints if (why := each.why_disabled) is not None},
            gains={each.url: each.gate.report() for each in endpoints},
        )

    async def aclose(self) -> None:
        """Release what model servers keep for us, within one hint's timeout, and stop."""
        self._is_open = False
        for conversation in self._sessions.values():
            conversation.close()
        with anyio.move_on_after(self._context.settings.timeout_s, shield=True):
            while self._sessions:
                self._left = anyio.Event()
                await self._left.wait()
        self._workers.cancel_scope.cancel()

    def _open(self, session: str) -> HintSession:
        conversation = self._sessions[session] = HintSession(session, self._context)
        self._workers.start_soon(self._work, conversation, name=f"hints of {session[:64]}")
        return conversation

    async def _work(self, conversation: HintSession) -> None:
        try:
            await conversation.run()
        finally:
            if self._sessions.get(conversation.name) is conversation:
                del self._sessions[conversation.name]
            self._left.set()


@asynccontextmanager
async def open_hints(
    settings: HintSettings,
    *,
    engine: EngineName,
    http: Callable[[str], httpx2.AsyncClient],
    headers_of: Callable[[str], Mapping[str, str]] = lambda _session: {},
    load_of: Callable[[str], int] = lambda _endpoint: 0,
    may_prefetch: Callable[[str], bool] = lambda _session: True,
    durations: ToolDurations | None = None,
) -> AsyncIterator[Hinter]:
    """A sink that sends hints to model servers while the block runs.

    http: the client for an endpoint's base address, with its keys and headers. headers_of: a session's own headers.
    load_of: requests running or waiting on an endpoint. may_prefetch: false for a session that admission has paused.
    """
    raised: Exception | None = None
    async with _open_lmcache(settings) as lmcache, anyio.create_task_group() as workers:
        context = HintContext(
            settings,
            engine,
            http,
            headers_of,
            load_of,
            durations or ToolDurations(),
            lmcache,
            may_prefetch=may_prefetch,
        )
        hinter = Hinter(context, workers)
        try:
            yield hinter
        except Exception as exc:
            raised = exc  # the task group would wrap it
        finally:
            await hinter.aclose()
    if raised is not None:
        raise raised


@asynccontextmanager
async def _open_lmcache(settings: HintSettings) -> AsyncIterator[LMCacheClient | None]:
    if settings.lmcache is None or settings.mode == "off":
        yield None
        return
    import httpx2

    async with httpx2.AsyncClient(timeout=settings.timeout_s, trust_env=False) as client:
        yield LMCacheClient(settings.lmcache, client)
