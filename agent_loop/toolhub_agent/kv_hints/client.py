"""Sends hints to endpoints, and keeps what is learned about each endpoint.

`HintEndpoint` is one model server: its engine, its health, what a prefill costs there. `HintContext` is what all
conversations share. `HintClient` sends the requests of one conversation. Each request has a timeout. The endpoint
records whether it succeeded. The answer to a prefetch may take longer, because a prefill does.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

import anyio

from toolhub_agent.kv_hints import policy
from toolhub_agent.kv_hints.engines import Command, EngineAdapter, LMCacheClient, adapter_for, identify
from toolhub_agent.kv_hints.estimates import PrefillTimeEstimator, ToolDurations
from toolhub_agent.kv_hints.policy import GainReport, PrefetchGate, SkipReason
from toolhub_agent.kv_hints.signals import Prompt
from toolhub_agent.kv_hints.template import TemplateChecks, TemplateVerdict
from toolhub_agent.llm.accumulator import usage_of
from toolhub_agent.types import Usage

if TYPE_CHECKING:
    import httpx2

    from toolhub.config.llm import EngineName, HintSettings


# --- An endpoint ------------------------------------------------------------------------------------------------------
# What is known of one endpoint: its engine, how fast it prefills, and whether prefetching helps there.

# After this many failures in a row an endpoint gets no hints for this long. An engine's restart takes about as long.
_FAILURES, BACK_OFF_S = 3, 30.0


class HintEndpoint:
    """One model server. `adapter` is None until the engine is known."""

    def __init__(self, url: str, *, engine: EngineName, settings: HintSettings) -> None:
        self.url = url
        self.adapter: EngineAdapter | None = None if engine == "auto" else self._adapter(engine, url, settings)
        self.cost = PrefillTimeEstimator()
        self.gate = PrefetchGate(always=settings.mode == "on")
        self.checks = TemplateChecks()
        self._settings = settings
        self._is_probed = self._asking = False
        self._failures = 0
        self._quiet_until = -float("inf")

    def __repr__(self) -> str:
        return f"<HintEndpoint {self.url}: {self.adapter!r}, {self.cost!r}>"

    @property
    def is_backed_off(self) -> bool:
        return anyio.current_time() < self._quiet_until

    @property
    def why_disabled(self) -> str | None:
        if self.gate.is_off:
            return "no measured gain"
        if self.checks.rewrites:
            return "the chat template rewrites history"
        return "endpoint refuses" if self._failures >= _FAILURES else None

    def needs_asking(self, prompt: Prompt) -> bool:
        return not self._asking and not self.is_backed_off and (not self._is_probed or not self.checks.verdict(prompt))

    async def ask(self, http: httpx2.AsyncClient, prompt: Prompt) -> None:
        """Detect the engine, what it can do, and how it renders such prompts. One session at a time does this."""
        self._asking = True
        try:
            if self.adapter is None:
                engine = await identify(http, self.url)
                self.adapter = self._adapter(engine, self.url, self._settings)
            if not self._is_probed:
                await self.adapter.probe(http)
                self._is_probed = True
            if self.checks.verdict(prompt) is None:
                await self.checks.check(http, self.adapter, prompt)
        finally:
            self._asking = False

    def refusal(self, prompt: Prompt) -> SkipReason | None:
        """Why the endpoint cannot prefetch such a prompt; None if it can."""
        if self.is_backed_off:
            return SkipReason.BACKED_OFF
        if self.adapter is None or (verdict := self.checks.verdict(prompt)) is None:
            return SkipReason.ENGINE_UNKNOWN
        return SkipReason.TEMPLATE if verdict is TemplateVerdict.REWRITES else None

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= _FAILURES:
            self._quiet_until = anyio.current_time() + BACK_OFF_S

    def worked(self) -> None:
        self._failures = 0

    @staticmethod
    def _adapter(engine: EngineName, url: str, settings: HintSettings) -> EngineAdapter:
        return adapter_for(engine, url, pin=settings.use_pin_scheduler)


# --- Counters ---------------------------------------------------------------------------------------------------------
# What the hints did, in numbers.


@dataclass(frozen=True, slots=True)
class HintStatistics:
    """Counts since the start. sessions: how many are open now.

    prefetches_skipped: tool waits without a prefetch, by reason. prefetches_aborted: prefetches that still ran when the
    conversation went on. hints_failed: other hints that failed or timed out. prefetched_tokens: tokens that prefetches
    computed; they count as usage of no conversation. pins: requests to keep a prefix. disabled: endpoint -> why it gets
    no prefetch.
    """

    sessions: int
    signals: int
    dropped: int
    prefetches_sent: int
    prefetches_failed: int
    prefetches_aborted: int
    prefetches_skipped: Mapping[str, int]
    prefetched_tokens: int
    pins: int
    releases: int
    hints_failed: int
    disabled: Mapping[str, str]
    gains: Mapping[str, GainReport]


@dataclass(eq=False)
class HintCounters:
    """The running counts behind `HintStatistics`."""

    signals: int = 0
    dropped: int = 0
    prefetches_sent: int = 0
    prefetches_failed: int = 0
    prefetches_aborted: int = 0
    prefetched_tokens: int = 0
    pins: int = 0
    releases: int = 0
    hints_failed: int = 0
    skipped: Counter[SkipReason] = field(default_factory=Counter)

    def freeze(self, *, sessions: int, disabled: Mapping[str, str], gains: Mapping[str, GainReport]) -> HintStatistics:
        return HintStatistics(
            sessions=sessions,
            signals=self.signals,
            dropped=self.dropped,
            prefetches_sent=self.prefetches_sent,
            prefetches_failed=self.prefetches_failed,
            prefetches_aborted=self.prefetches_aborted,
            prefetches_skipped={skip.value: count for skip, count in self.skipped.items()},
            prefetched_tokens=self.prefetched_tokens,
            pins=self.pins,
            releases=self.releases,
            hints_failed=self.hints_failed,
            disabled=disabled,
            gains=gains,
        )


# --- The context ------------------------------------------------------------------------------------------------------
# What all conversations of a hinter use.

# How many of the latest programs and delays are kept. That is enough for Continuum's T and eta.
_KEPT = 64
# No agent has more endpoints than this. The bound is needed because the names come from the signals' senders.
_MAX_ENDPOINTS = 256


@dataclass(eq=False)
class HintContext:
    """Settings, HTTP clients, and all that is learned from conversations."""

    settings: HintSettings
    engine: EngineName
    http: Callable[[str], httpx2.AsyncClient]
    headers_of: Callable[[str], Mapping[str, str]]
    load_of: Callable[[str], int]
    durations: ToolDurations
    lmcache: LMCacheClient | None = None
    may_prefetch: Callable[[str], bool] = lambda _session: True
    counters: HintCounters = field(default_factory=HintCounters)
    endpoints: dict[str, HintEndpoint] = field(default_factory=dict)
    program_lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    queue_delays: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def endpoint(self, url: str) -> HintEndpoint | None:
        """Return the endpoint; None if `url` is empty or too many endpoints are known already."""
        if url and url not in self.endpoints and len(self.endpoints) < _MAX_ENDPOINTS:
            self.endpoints[url] = HintEndpoint(url, engine=self.engine, settings=self.settings)
        return self.endpoints.get(url)

    def retention(self, endpoint: HintEndpoint, prefix_tokens: int, tool: tuple[str, str] | None = None) -> float:
        """Seconds to keep a prefix. tool: the tool that the conversation waits for, if it is known already."""
        longest = self.settings.max_pin_s
        if endpoint.adapter is not None and endpoint.adapter.pins_yield:
            return policy.p90_ttl(self.durations.of_all(), margin=self.settings.lead_time_s, longest=longest)
        reload = endpoint.cost.seconds(prefix_tokens) - endpoint.cost.seconds(prefix_tokens, prefix_tokens)
        delay = fmean(self.queue_delays) if self.queue_delays else 0.0
        benefit = delay * policy.request_count_correlation(self.program_lengths) + reload
        own = self.durations.own(*tool) if tool else ()
        return policy.retention_ttl(own, self.durations.of_all(), benefit, longest=longest)


# --- The client -------------------------------------------------------------------------------------------------------

logger = logging.getLogger("toolhub.hints")

# The longest time for a prefetch. Dynamo ends its own prefetches after the same time.
PREFETCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class HintClient:
    """Sends the requests of one conversation. A failure is recorded at the endpoint and raised."""

    session: str
    context: HintContext

    async def ask(self, endpoint: HintEndpoint, prompt: Prompt) -> None:
        """Detect the endpoint's engine and check how its chat template renders such prompts."""
        with self._recording_health(endpoint), anyio.fail_after(self.context.settings.timeout_s):
            await endpoint.ask(self.context.http(endpoint.url), prompt)

    async def prefetch(
        self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt, request_id: str
    ) -> Usage | None:
        """Send a prefetch and return its usage; None if LMCache loads the prefix, because LMCache reports no usage."""
        if await self._prefetched_by_lmcache(endpoint, adapter, prompt):
            return None
        with self._recording_health(endpoint), anyio.fail_after(PREFETCH_TIMEOUT_S):
            headers = dict(self.context.headers_of(self.session))
            began = anyio.current_time()
            answer = await self._send(endpoint, adapter.prefetch(self.session, prompt, request_id, headers), slow=True)
            if 400 <= answer.status_code < 500 and adapter.refused(answer.status_code, answer.text):
                began = anyio.current_time()
                again = adapter.prefetch(self.session, prompt, request_id, headers)
                answer = await self._send(endpoint, again, slow=True)
            found = answer.raise_for_status().json()
        usage = usage_of(found.get("usage") or {}, found)
        if usage.cached_tokens is not None:
            endpoint.cost.observe(usage.prompt_tokens, usage.cached_tokens, anyio.current_time() - began)
        return usage

    async def abort(self, endpoint: HintEndpoint, adapter: EngineAdapter, request_id: str) -> None:
        """Abort a prefetch, at engines that notice a closed connection late."""
        if (command := adapter.abort(request_id)) is not None:
            await self._send_checked(endpoint, command)

    async def release(self, endpoint: HintEndpoint, prompt: Prompt | None) -> bool:
        """Tell the engine that the conversation is over; False if the engine takes no such request."""
        headers = dict(self.context.headers_of(self.session))
        adapter = endpoint.adapter
        command = adapter.release(self.session, prompt, headers) if adapter is not None else None
        if command is not None:
            await self._send_checked(endpoint, command)
        return command is not None

    async def pin(self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt) -> Command | None:
        """Have LMCache keep the prompt. Return the command that undoes it; None if nothing was pinned."""
        if self.context.lmcache is None:
            return None
        with anyio.fail_after(self.context.settings.timeout_s):
            return await self.context.lmcache.pin(self.context.http(endpoint.url), adapter, prompt)

    async def unpin(self, pinned: Command) -> None:
        if self.context.lmcache is not None:
            with anyio.fail_after(self.context.settings.timeout_s):
                await self.context.lmcache.unpin(pinned)

    async def _prefetched_by_lmcache(self, endpoint: HintEndpoint, adapter: EngineAdapter, prompt: Prompt) -> bool:
        if self.context.lmcache is None:
            return False
        try:
            with anyio.fail_after(self.context.settings.timeout_s):
                return await self.context.lmcache.prefetch(self.context.http(endpoint.url), adapter, prompt)
        except Exception as exc:
            # The engine can still prefetch it.
            self.context.counters.hints_failed += 1
            logger.debug("LMCache: %s", type(exc).__name__)
            return False

    async def _send_checked(self, endpoint: HintEndpoint, command: Command) -> None:
        with self._recording_health(endpoint), anyio.fail_after(self.context.settings.timeout_s):
            (await self._send(endpoint, command)).raise_for_status()

    async def _send(self, endpoint: HintEndpoint, command: Command, *, slow: bool = False) -> httpx2.Response:
        import httpx2

        budget = self.context.settings.timeout_s
        return await self.context.http(endpoint.url).request(
            command.method,
            command.url,
            json=command.body,
            headers=dict(command.headers),
            timeout=httpx2.Timeout(budget, read=None if slow else budget),
        )

    @contextmanager
    def _recording_health(self, endpoint: HintEndpoint) -> Iterator[None]:
        try:
            yield
        except Exception:
            endpoint.failed()
            raise
        endpoint.worked()
