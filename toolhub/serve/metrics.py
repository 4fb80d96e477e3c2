"""`/metrics`: the hub's counters in the Prometheus format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolhub.extensions import Frontend
from toolhub.hub import Hub
from toolhub.model import (
    BudgetStatistics,
    CacheStatistics,
    Call,
    CoalesceStatistics,
    HubStatistics,
    SandboxCounts,
    ServerHealth,
    SpeculationStatistics,
)

# From a cached look-up to a long reasoning call.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class HubCollector:
    """Reads the hub's statistics at each scrape."""

    def __init__(self, hub: Hub, frontends: Sequence[Frontend]) -> None:
        self._hub = hub
        self._frontends = frontends

    def collect(self) -> Iterator[Metric]:
        statistics = self._hub.statistics()
        yield GaugeMetricFamily("toolhub_tasks", "Open tasks", value=len(statistics.tasks))
        sessions = GaugeMetricFamily("toolhub_slots", "Slots by server and state", labels=["server", "state"])
        counts: dict[tuple[str, str], int] = {}
        for slot in (*statistics.shared, *(slot for task in statistics.tasks for slot in task.slots)):
            counts[slot.server, slot.state] = counts.get((slot.server, slot.state), 0) + 1
        for labels, count in sorted(counts.items()):
            sessions.add_metric(labels, count)
        yield sessions
        yield from _of_limiters(statistics)
        yield from _of_shared_calls(statistics.coalescing, statistics.cache)
        yield from _of_speculation(statistics.speculation)
        if (shared := statistics.shared_results) is not None:
            hits, misses = "Calls answered from the store on disk", "Calls that the store on disk could not answer"
            yield CounterMetricFamily("toolhub_shared_results_hits", hits, value=shared.hits)
            yield CounterMetricFamily("toolhub_shared_results_misses", misses, value=shared.misses)
        if statistics.budget is not None:
            yield from _of_budget(statistics.budget)
        yield from _of_servers(statistics.servers)
        yield CounterMetricFamily("toolhub_retries", "Calls sent again after a death", value=statistics.retries)
        if statistics.sandboxes is not None:
            yield from _of_sandboxes(statistics.sandboxes)
        yield _of_shared(self._hub.resources.statistics())
        for frontend in self._frontends:
            yield from frontend.collect()


def _of_servers(servers: Sequence[ServerHealth]) -> Iterator[Metric]:
    starts = CounterMetricFamily("toolhub_session_starts", "Sessions started", labels=["server"])
    deaths = CounterMetricFamily("toolhub_session_deaths", "Sessions that died or did not start", labels=["server"])
    broken = GaugeMetricFamily(
        "toolhub_server_broken", "1: the last start failed, or the server was given up", labels=["server", "state"]
    )
    for server in servers:
        starts.add_metric([server.server], server.starts)
        deaths.add_metric([server.server], server.deaths)
        for state in ("failing", "given_up"):
            broken.add_metric([server.server, state], server.state == state)
    yield from (starts, deaths, broken)


def _of_limiters(statistics: HubStatistics) -> Iterator[Metric]:
    """Yield the metrics of the limiters. Calls that wait at the limiters of tasks are counted by run."""
    limit = GaugeMetricFamily("toolhub_limiter_limit", "Calls that may run at once", labels=["limiter"])
    in_use = GaugeMetricFamily("toolhub_limiter_in_use", "Calls that run", labels=["limiter"])
    waiting = GaugeMetricFamily("toolhub_limiter_waiting", "Calls that wait", labels=["limiter"])
    refusals = CounterMetricFamily("toolhub_limiter_refusals", "Calls refused", labels=["limiter"])
    waits = CounterMetricFamily("toolhub_limiter_waits", "Calls that had to wait", labels=["limiter"])
    waited = CounterMetricFamily("toolhub_limiter_wait_seconds", "Seconds that calls waited", labels=["limiter"])
    families: list[GaugeMetricFamily | CounterMetricFamily] = [limit, in_use, waiting, refusals, waits, waited]
    for limiter in statistics.limiters:
        values = (
            limiter.limit,
            limiter.in_use,
            limiter.waiting,
            limiter.refusals,
            limiter.waits,
            limiter.waited_seconds,
        )
        for family, value in zip(families, values, strict=True):
            family.add_metric([limiter.name], value)
    yield from families
    runs = GaugeMetricFamily("toolhub_run_waiting", "Calls that wait, by run", labels=["run"])
    queued: dict[str, int] = {}
    for task in statistics.tasks:
        queued[task.run] = queued.get(task.run, 0) + task.waiting
    for run, count in sorted(queued.items()):
        runs.add_metric([run], count)
    yield runs


def _of_shared_calls(coalescing: CoalesceStatistics, cache: CacheStatistics) -> Iterator[Metric]:
    yield CounterMetricFamily("toolhub_coalesced", "Calls that joined an equal one", value=coalescing.coalesced)
    yield CounterMetricFamily(
        "toolhub_coalesce_executions", "Calls executed that equal ones could join", value=coalescing.executions
    )
    yield GaugeMetricFamily(
        "toolhub_coalesce_in_flight", "Calls in flight that equal ones can join", value=coalescing.in_flight
    )
    yield CounterMetricFamily("toolhub_cache_hits", "Calls answered from a cache", value=cache.hits)
    yield CounterMetricFamily("toolhub_cache_misses", "Calls that no cache could answer", value=cache.misses)
    yield CounterMetricFamily("toolhub_cache_evictions", "Answers evicted from full caches", value=cache.evictions)
    yield GaugeMetricFamily("toolhub_cache_entries", "Answers in caches", value=cache.entries)
    yield GaugeMetricFamily("toolhub_cache_bytes", "Size of the answers in caches", value=cache.bytes)


def _of_speculation(speculation: SpeculationStatistics) -> Iterator[Metric]:
    early = CounterMetricFamily("toolhub_early", "Work begun before a call asked for it", labels=["kind"])
    early.add_metric(["prefetch"], speculation.prefetches)
    early.add_metric(["guess"], speculation.guesses)
    yield early
    yield CounterMetricFamily("toolhub_early_used", "Early work that a call used", value=speculation.used)
    yield CounterMetricFamily("toolhub_early_preempted", "Early work that made way", value=speculation.preempted)
    yield CounterMetricFamily(
        "toolhub_early_refused", "Early work without a spare place or budget", value=speculation.refused
    )


def _of_budget(budget: BudgetStatistics) -> Iterator[Metric]:
    used = GaugeMetricFamily("toolhub_budget_used", "Used by all sessions together", labels=["thing"])
    limits = GaugeMetricFamily(
        "toolhub_budget_limit", "Limit for all sessions together; absent without a limit", labels=["thing"]
    )
    for thing, value, limit in (
        ("processes", budget.processes, budget.processes_limit),
        ("memory_bytes", budget.memory_bytes, budget.memory_limit),
        ("open_files", budget.open_files, budget.open_files_limit),
    ):
        if value is not None:
            used.add_metric([thing], value)
        if limit is not None:
            limits.add_metric([thing], limit)
    yield used
    yield limits
    yield GaugeMetricFamily("toolhub_budget_waiting", "Starts that wait for room", value=budget.waiting)
    yield CounterMetricFamily("toolhub_evictions", "Idle sessions ended to make room", value=budget.evictions)
    yield CounterMetricFamily("toolhub_budget_refusals", "Starts refused because of the budget", value=budget.refusals)


def _of_sandboxes(statistics: SandboxCounts) -> Iterator[Metric]:
    states = GaugeMetricFamily("toolhub_sandboxes", "Sandboxes by state", labels=["state"])
    states.add_metric(["used"], statistics.live)
    states.add_metric(["ready"], statistics.ready)
    yield states
    yield CounterMetricFamily("toolhub_sandbox_creations", "Sandboxes handed out", value=statistics.created)
    if statistics.memory_bytes is not None:
        yield GaugeMetricFamily("toolhub_sandbox_memory_bytes", "Used by all sandboxes", value=statistics.memory_bytes)


def _of_shared(statistics: Mapping[str, Mapping[str, float]]) -> Metric:
    family = GaugeMetricFamily("toolhub_shared", "Counts of resources that builtins share", labels=["thing", "count"])
    for thing, counts in statistics.items():
        for count, value in counts.items():
            family.add_metric([thing, count], value)
    return family


class _CallTimes:
    """Observes calls into a histogram."""

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds
        self._answered: set[tuple[str, str]] = set()
        self._labelled: dict[tuple[str, str, str], Histogram] = {}
        """By labels: to ask the histogram for them costs as much as the rest of this."""

    def began(self, call: Call) -> None:
        pass

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        # A name that the model made up must not become a label, because labels are never removed. The config lists the
        # servers. A tool's name becomes a label after its first answer.
        if outcome == "ok":
            self._answered.add((call.server, call.tool))
        server = "" if outcome == "ToolNotFound" else call.server
        tool = call.tool if (call.server, call.tool) in self._answered else ""
        labels = (server, tool, outcome)
        if labels not in self._labelled:
            self._labelled[labels] = self._seconds.labels(*labels)
        self._labelled[labels].observe(seconds)


def metrics_route(hub: Hub, frontends: Sequence[Frontend] = ()) -> Route:
    """Register the collectors and return the route. frontends: may grow later; each adds its own metrics."""
    registry = CollectorRegistry()
    registry.register(HubCollector(hub, frontends))
    seconds = Histogram(
        "toolhub_call_seconds",
        "Duration of tool calls, with the time in queues",
        ["server", "tool", "outcome"],
        buckets=_BUCKETS,
        registry=registry,
    )
    hub.observers.append(_CallTimes(seconds))

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Route("/metrics", metrics)
