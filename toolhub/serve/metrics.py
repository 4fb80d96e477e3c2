"""`/metrics`: what the hub counts, in Prometheus' form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolhub.hosting import Door
from toolhub.hub import Hub
from toolhub.model import Call, SandboxCounts

# From a cached look-up to a long reasoning call.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class HubCollector:
    """Reads the hub's statistics at each scrape: nothing is counted twice."""

    def __init__(self, hub: Hub, doors: Sequence[Door]) -> None:
        self._hub = hub
        self._doors = doors

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
        gate = self._hub.gate
        yield GaugeMetricFamily("toolhub_calls_in_flight", "Calls being executed", value=gate.in_use)
        yield GaugeMetricFamily("toolhub_calls_waiting", "Calls waiting for the hub's limit", value=gate.waiting)
        yield CounterMetricFamily("toolhub_session_starts", "Sessions started", value=statistics.starts)
        yield CounterMetricFamily(
            "toolhub_session_deaths", "Sessions that died or did not start", value=statistics.deaths
        )
        yield CounterMetricFamily("toolhub_replays", "Calls sent again after a death", value=statistics.replays)
        if statistics.sandboxes is not None:
            yield from _of_sandboxes(statistics.sandboxes)
        yield _of_shared(self._hub.commons.statistics())
        for door in self._doors:
            yield from door.collect()


def _of_sandboxes(statistics: SandboxCounts) -> Iterator[Metric]:
    states = GaugeMetricFamily("toolhub_sandboxes", "Sandboxes by state", labels=["state"])
    states.add_metric(["used"], statistics.live)
    states.add_metric(["ready"], statistics.ready)
    yield states
    yield CounterMetricFamily("toolhub_sandbox_creations", "Sandboxes handed out", value=statistics.created)
    if statistics.memory_bytes is not None:
        yield GaugeMetricFamily("toolhub_sandbox_memory_bytes", "Used by all sandboxes", value=statistics.memory_bytes)


def _of_shared(statistics: Mapping[str, Mapping[str, float]]) -> Metric:
    family = GaugeMetricFamily("toolhub_shared", "What builtin servers share, and counts", labels=["thing", "count"])
    for thing, counts in statistics.items():
        for count, value in counts.items():
            family.add_metric([thing, count], value)
    return family


class _CallTimes:
    """Observes calls into a histogram."""

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds
        self._answered: set[tuple[str, str]] = set()

    def began(self, call: Call) -> None:
        pass

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        # A name that the model made up must not become a label: labels live for ever. The config knows which servers
        # there are; a tool is known to be one once it has answered.
        if outcome == "ok":
            self._answered.add((call.server, call.tool))
        server = "" if outcome == "ToolNotFound" else call.server
        tool = call.tool if (call.server, call.tool) in self._answered else ""
        self._seconds.labels(server, tool, outcome).observe(seconds)


def metrics_route(hub: Hub, doors: Sequence[Door] = ()) -> Route:
    """Register the collectors and return the route. doors: may grow later; each tells its own metrics."""
    registry = CollectorRegistry()
    registry.register(HubCollector(hub, doors))
    seconds = Histogram(
        "toolhub_call_seconds",
        "Duration of tool calls, waiting included",
        ["server", "tool", "outcome"],
        buckets=_BUCKETS,
        registry=registry,
    )
    hub.observers.append(_CallTimes(seconds))

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Route("/metrics", metrics)
