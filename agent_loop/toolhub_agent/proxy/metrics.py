"""What the proxy counts, and the Prometheus metrics of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import anyio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from toolhub_agent.admission.controller import AdmissionStatistics
from toolhub_agent.kv_hints.client import HintStatistics
from toolhub_agent.llm.endpoint_pool import EndpointStatistics
from toolhub_agent.types import Usage

# From a cached prefix on a fast engine to a long prompt on a busy one.
_TTFT_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# The latency that the proxy adds, from almost none to far too much.
_ADDED_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1)

# Conversations whose pauses are shown, and the length of their names: clients choose these.
MAX_PAUSED_SHOWN, MAX_NAME_CHARS = 20, 100


class Histogram:
    """A histogram of seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counters = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counters[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self._counters)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, count up to it), as Prometheus expects them."""
        total, out = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counters, strict=True):
            total += count
            out.append((bound, float(total)))
        return out


@dataclass(eq=False)
class ProxyCounters:
    """Running sums. requests: by (path, status). ttft: of streamed answers. added: by the proxy, without waiting."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    in_flight: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT_S))
    added: Histogram = field(default_factory=lambda: Histogram(_ADDED_S))
    waited_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def used(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens or 0
        self.completion_tokens += usage.completion_tokens


def metric_families(
    counters: ProxyCounters, endpoints: Mapping[str, EndpointStatistics], hints: HintStatistics, conversations: int
) -> Iterator[Metric]:
    """Metric families.

    Labels are endpoints of the config, the proxy's own paths, statuses, fixed words, and a few conversations.
    """
    requests = CounterMetricFamily("toolhub_llm_requests", "Requests answered", labels=["path", "status"])
    for (path, status), count in sorted(counters.requests.items()):
        requests.add_metric([path, str(status)], count)
    yield requests
    yield GaugeMetricFamily("toolhub_llm_in_flight", "Requests being answered or waiting", value=counters.in_flight)
    yield GaugeMetricFamily("toolhub_llm_conversations", "Conversations followed", value=conversations)
    yield from _of_endpoints(endpoints)
    yield _histogram_family("toolhub_llm_ttft_seconds", "Time to the first piece of a streamed answer", counters.ttft)
    yield _histogram_family(
        "toolhub_llm_added_seconds", "What the proxy adds to the time to the first byte", counters.added
    )
    yield CounterMetricFamily(
        "toolhub_llm_waited_seconds", "Waiting for admission and a slot, in all", value=counters.waited_s
    )
    tokens = CounterMetricFamily("toolhub_llm_tokens", "Tokens as the engines count them", labels=["kind"])
    for kind in ("prompt", "cached", "completion"):
        tokens.add_metric([kind], getattr(counters, f"{kind}_tokens"))
    yield tokens
    yield from _of_hints(hints)


def _histogram_family(name: str, text: str, times: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, buckets=times.buckets(), sum_value=times.sum)


def _of_endpoints(endpoints: Mapping[str, EndpointStatistics]) -> Iterator[Metric]:
    slots = GaugeMetricFamily("toolhub_llm_slots", "Slots by endpoint and state", labels=["endpoint", "state"])
    failing = GaugeMetricFamily("toolhub_llm_endpoint_failing", "1: gets no requests for now", labels=["endpoint"])
    for url, found in endpoints.items():
        for state in ("limit", "in_use", "waiting"):
            slots.add_metric([url, state], getattr(found.slots, state))
        failing.add_metric([url], found.is_failing)
    yield slots
    yield failing
    yield from _of_admission({url: found.admission for url, found in endpoints.items() if found.admission is not None})


def _of_admission(endpoints: Mapping[str, AdmissionStatistics]) -> Iterator[Metric]:
    if not endpoints:
        return
    tokens = GaugeMetricFamily("toolhub_llm_cache_tokens", "Tokens of a KV cache", labels=["endpoint", "kind"])
    programs = GaugeMetricFamily("toolhub_llm_programs", "Conversations by state", labels=["endpoint", "state"])
    pauses = CounterMetricFamily("toolhub_llm_pauses", "Conversations that were paused", labels=["endpoint", "reason"])
    waits = CounterMetricFamily("toolhub_llm_admission_waits", "Turns that waited for admission", labels=["endpoint"])
    waited = CounterMetricFamily("toolhub_llm_admission_waited_seconds", "Waits of those turns", labels=["endpoint"])
    paused = GaugeMetricFamily(
        "toolhub_llm_paused_seconds",
        f"For how long a conversation has had no place, and why; the longest {MAX_PAUSED_SHOWN}",
        labels=["endpoint", "conversation", "reason"],
    )
    for url, found in endpoints.items():
        ledger = found.ledger
        for kind, count in (("capacity", ledger.capacity), ("limit", ledger.limit), ("used", ledger.used)):
            if count is not None:
                tokens.add_metric([url, kind], count)
        states = {"running": ledger.running, "acting": ledger.acting, "waiting": ledger.waiting}
        for state, count in {**states, "paused": len(ledger.paused) - ledger.waiting}.items():
            programs.add_metric([url, state], count)
        for reason, count in sorted(ledger.pauses.items()):
            pauses.add_metric([url, reason], count)
        waits.add_metric([url], found.waits)
        waited.add_metric([url], found.waited_s)
        for program in sorted(ledger.paused, key=lambda each: each.since)[:MAX_PAUSED_SHOWN]:
            since = max(0.0, anyio.current_time() - program.since)
            paused.add_metric([url, program.name[:MAX_NAME_CHARS], program.why], since)
    yield from (tokens, programs, pauses, waits, waited, paused)


def _of_hints(hints: HintStatistics) -> Iterator[Metric]:
    yield GaugeMetricFamily("toolhub_llm_hint_sessions", "Conversations that hints are given for", value=hints.sessions)
    done = CounterMetricFamily("toolhub_llm_hints", "Hints by what became of them", labels=["what"])
    names = (
        "signals",
        "dropped",
        "prefetches_sent",
        "prefetches_failed",
        "prefetches_aborted",
        "pins",
        "releases",
        "hints_failed",
    )
    for name in names:
        done.add_metric([name], getattr(hints, name))
    yield done
    skipped = CounterMetricFamily("toolhub_llm_prefetches_skipped", "Tool waits without a prefetch", labels=["reason"])
    for reason, count in sorted(hints.prefetches_skipped.items()):
        skipped.add_metric([reason], count)
    yield skipped
    yield CounterMetricFamily("toolhub_llm_prefetched_tokens", "Computed by prefetches", value=hints.prefetched_tokens)
