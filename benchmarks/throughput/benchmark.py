"""How many calls a second? Variants of calling the same server take turns, with several calls in flight."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.common.baselines import FASTMCP
from benchmarks.common.measure import interleaved, median, percentile, spread
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.server_commands import ServerCommand, builtin_clock, lean_echo, own_clock
from benchmarks.common.variants import Variant, start
from benchmarks.questions import QUESTIONS

_FLOOR = Variant("floor", "JSON lines by hand (floor)")
_SDK = Variant("sdk", "SDK, persistent session")
_EMBEDDED = Variant("embedded", "toolhub embedded")
_SOCKET = Variant("socket", "toolhub serve, unix socket")
_FASTMCP = Variant("fastmcp", "fastmcp Client, keep_alive", environment=FASTMCP)
VARIANTS = (_FLOOR, _SDK, _EMBEDDED, _SOCKET, _FASTMCP)
"""The variants for a program. A builtin has only those through a hub."""
_HUB_VARIANTS = (_EMBEDDED, _SOCKET)

LEAST_SERVED_PER_S = 1500
MOST_LAG_MS = 20


@dataclass(frozen=True)
class ThroughputScale:
    """calls: of each variant, per round and number in flight."""

    rounds: int
    calls: int
    in_flight: tuple[int, ...] = (1, 8, 64)
    servers: tuple[ServerCommand, ...] = (lean_echo(), own_clock(), builtin_clock())
    """Each has a table; a builtin shares that of the server before it. The targets are about the first."""


@dataclass
class ThroughputSamples:
    """What was measured of one variant, over all rounds but the first."""

    per_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    calls: int = 0
    client_cpu_s: float = 0.0
    hub_cpu_s: float = 0.0
    lags_ms: list[float] = field(default_factory=list)

    def add(self, in_flight: int, answer: Json) -> None:
        self.per_s[in_flight].append(answer["calls"] / answer["seconds"])
        self.calls += answer["calls"]
        self.client_cpu_s += answer["client_cpu_s"]
        self.hub_cpu_s += answer["hub_cpu_s"]
        self.lags_ms += answer["lags_ms"]

    @property
    def client_cpu_us(self) -> float:
        return self.client_cpu_s / self.calls * 1e6

    @property
    def hub_cpu_us(self) -> float:
        return self.hub_cpu_s / self.calls * 1e6

    def raw(self) -> Json:
        return {
            "per_s_by_round": {str(in_flight): rates for in_flight, rates in self.per_s.items()},
            "calls": self.calls,
            "client_cpu_s": self.client_cpu_s,
            "hub_cpu_s": self.hub_cpu_s,
            "lags_ms": spread(self.lags_ms),
        }


SamplesByVariant = dict[Variant, ThroughputSamples]


def run(scale: ThroughputScale) -> Outcome:
    outcome = Outcome(notes=[
        "Every variant is a process of its own on asyncio with a server of its own; they take turns, round 0 is "
        "discarded. Every echo has a text of its own, and every answer is compared: a wrong one would end the run.",
        "CPU is that of the client's process, all numbers in flight together, and beside it that of `toolhub serve`, "
        "which chooses uvloop itself; servers are not counted.",
        "Lag: how late a coroutine wakes that sleeps 5 ms over and over, in the loop that does the work: the hub's own "
        "(of `toolhub serve` a builtin server tells it), elsewhere the client's, which makes the calls as well.",
    ])  # fmt: skip
    for server in scale.servers:
        found = _measure(server, scale, outcome.notes)
        rows = [_row(server, variant, samples, scale) for variant, samples in found.items()]
        if server.builtin and outcome.tables:
            outcome.tables[-1].rows.extend(rows)
        else:
            outcome.tables.append(Table(_title(server), _columns(scale), rows))
        _compare(outcome.tables[-1].rows, scale)
        outcome.raw[server.name] = {variant.label: samples.raw() for variant, samples in found.items()}
        if server is scale.servers[0]:
            outcome.targets = _targets(found, scale)
    return outcome


def _measure(server: ServerCommand, scale: ThroughputScale, notes: list[str]) -> SamplesByVariant:
    with ExitStack() as stack:
        workers = start(server, _HUB_VARIANTS if server.builtin else VARIANTS, stack, notes)
        found = {variant: ThroughputSamples() for variant in workers}
        for number, variant in interleaved(list(workers), scale.rounds):
            for in_flight in scale.in_flight:
                calls = max(scale.calls, in_flight)
                answer = workers[variant].ask({"calls": calls, "in_flight": in_flight, "lags": True})
                if number > 0:
                    found[variant].add(in_flight, answer)
    return found


def _row(server: ServerCommand, variant: Variant, samples: ThroughputSamples, scale: ThroughputScale) -> Json:
    row: Json = {
        "way": f"{variant.label}, builtin (no process)" if server.builtin else variant.label,
        "calls": samples.calls,
        "client_cpu_us": samples.client_cpu_us,
        "hub_cpu_us": samples.hub_cpu_us if variant is _SOCKET else None,
        "lag_p99_ms": percentile(samples.lags_ms, 0.99) if samples.lags_ms else None,
    }
    return row | {f"at_{in_flight}_per_s": _rate(samples, in_flight) for in_flight in scale.in_flight}


def _rate(samples: ThroughputSamples | None, in_flight: int) -> float | None:
    return median(samples.per_s[in_flight]) if samples is not None else None


def _compare(rows: list[Json], scale: ThroughputScale) -> None:
    """Give each row the ratio of its calls per second to the SDK's."""
    base = next((row for row in rows if row["way"] == _SDK.label), {})
    for row in rows:
        for in_flight in scale.in_flight:
            key = f"at_{in_flight}_per_s"
            row[f"at_{in_flight}_vs_sdk"] = ratio(row[key], base.get(key))


def _columns(scale: ThroughputScale) -> list[Column]:
    return [
        Column("way", "way of calling"),
        Column("calls", "calls"),
        *(Column(f"at_{n}_per_s", f"calls/s, {n} in flight") for n in scale.in_flight),
        *(Column(f"at_{n}_vs_sdk", f"÷ SDK, {n} in flight", 2) for n in scale.in_flight),
        Column("client_cpu_us", "client CPU µs/call"),
        Column("hub_cpu_us", "hub CPU µs/call"),
        Column("lag_p99_ms", "loop lag p99, ms", 1),
    ]


def _title(server: ServerCommand) -> str:
    if server.name == "lean":
        return "A server that costs nothing (20 µs), so that the client's cost is seen"
    return f"`toolhub_servers.{server.name}` over its own stdio transport, and as a builtin"


def _targets(found: SamplesByVariant, scale: ThroughputScale) -> list[Target]:
    sdk, embedded, served = found.get(_SDK), found.get(_EMBEDDED), found.get(_SOCKET)
    rates = [
        Target(
            f"embedded ÷ SDK, calls/s, {in_flight} in flight",
            ratio(_rate(embedded, in_flight), _rate(sdk, in_flight)),
            1.0,
            "×",
            at_most=False,
        )
        for in_flight in scale.in_flight
    ]
    cpu = ratio(embedded.client_cpu_us, sdk.client_cpu_us) if embedded and sdk else None
    busiest = scale.in_flight[-1]
    return [
        *rates,
        Target("embedded CPU ÷ SDK CPU, per call", cpu, 1.0, "×"),
        Target(
            f"unix socket, {busiest} in flight, on this machine",
            _rate(served, busiest),
            LEAST_SERVED_PER_S,
            "calls/s",
            at_most=False,
        ),
        Target("embedded loop lag p99", _lag(embedded), MOST_LAG_MS, "ms"),
        Target("served hub's loop lag p99", _lag(served), MOST_LAG_MS, "ms"),
    ]


def _lag(samples: ThroughputSamples | None) -> float | None:
    return percentile(samples.lags_ms, 0.99) if samples is not None and samples.lags_ms else None


BENCHMARK = Benchmark(
    "throughput",
    QUESTIONS["throughput"],
    run,
    full=ThroughputScale(rounds=5, calls=1000),
    quick=ThroughputScale(rounds=2, calls=300),
)
