"""What does one call cost? Variants of calling the same server take turns; the base is the SDK's plain client."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.common.baselines import FASTMCP, LANGCHAIN
from benchmarks.common.measure import interleaved, median, percentile, pss_bytes, spread, tree, tree_cpu_seconds
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.server_commands import ServerCommand, lean_echo, sdk_echo
from benchmarks.common.variants import Variant, start, version_notes
from benchmarks.questions import QUESTIONS

_BASE = Variant("sdk", "SDK, persistent session")
_EMBEDDED = Variant("embedded", "toolhub embedded")
_SOCKET = Variant("socket", "toolhub serve, unix socket", has_hub=True)
_SPAWN = Variant("spawn", "SDK, process per call (MiroFlow)", spawns=True)
VARIANTS = (
    Variant("floor", "JSON lines by hand (floor)"),
    _BASE,
    Variant("sdk", "SDK, persistent session, uvloop", uvloop=True),
    _EMBEDDED,
    Variant("embedded", "toolhub embedded, uvloop", uvloop=True),
    _SOCKET,
    Variant("http", "toolhub serve, MCP over HTTP", has_hub=True),
    Variant("fastmcp_proxy", "fastmcp proxy, MCP over HTTP", environment=FASTMCP, has_hub=True),
    Variant("fastmcp", "fastmcp Client, keep_alive", environment=FASTMCP),
    Variant("langchain_session", "langchain-mcp-adapters, kept session", environment=LANGCHAIN),
    Variant("langchain", "langchain-mcp-adapters, get_tools (process per call)", environment=LANGCHAIN, spawns=True),
    _SPAWN,
)


@dataclass(frozen=True)
class OverheadScale:
    """Calls per variant and round; a call that spawns a process is measured `spawns` times per round."""

    rounds: int
    calls: int
    spawns: int
    in_flight: tuple[int, ...] = (8, 64)
    variants: tuple[Variant, ...] = VARIANTS
    servers: tuple[ServerCommand, ...] = (sdk_echo(), lean_echo())
    """Each has a table. The targets are about the first."""


@dataclass
class OverheadSamples:
    """What was measured of one variant, over all rounds."""

    latencies_us: list[float] = field(default_factory=list)
    round_p50_us: list[float] = field(default_factory=list)
    per_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    client_cpu_s: float = 0.0
    hub_cpu_s: float = 0.0
    all_cpu_s: float = 0.0
    """CPU seconds of all processes, for `all_calls` calls."""
    all_calls: int = 0
    pss: int = 0
    """PSS in bytes of all processes that live on between calls."""

    def add(self, in_flight: int, answer: Json, all_cpu_s: float) -> None:
        self.per_s[in_flight].append(answer["calls"] / answer["seconds"])
        self.all_cpu_s += all_cpu_s
        self.all_calls += answer["calls"]
        if in_flight == 1:
            self.latencies_us += answer["latencies_us"]
            self.round_p50_us.append(median(answer["latencies_us"]))
            self.client_cpu_s += answer["client_cpu_s"]
            self.hub_cpu_s += answer["hub_cpu_s"]

    def raw(self) -> Json:
        return {
            "latency_us": spread(self.latencies_us),
            "p50_us_by_round": self.round_p50_us,
            "per_s_by_round": {str(k): v for k, v in self.per_s.items()},
            "client_cpu_s": self.client_cpu_s,
            "hub_cpu_s": self.hub_cpu_s,
            "all_cpu_s": self.all_cpu_s,
            "all_calls": self.all_calls,
            "pss": self.pss,
        }


def run(scale: OverheadScale) -> Outcome:
    outcome = Outcome(notes=[
        "Every variant is a process of its own with a server of its own; they take turns, round 0 is discarded. "
        "All clients run on asyncio unless the row says uvloop; the process of `toolhub serve` chooses uvloop itself.",
        "MCP over HTTP: the SDK's client, one session kept, over TCP on loopback. `toolhub serve` gives each MCP "
        "session a process of the server. fastmcp's proxy (`create_proxy` of an `mcpServers` document, its "
        "`http_app()` under uvicorn on uvloop) keeps one for all its clients.",
        "Client and hub CPU are those of one call at a time; hub CPU is that of the process in between alone. CPU of "
        "all is that of the client, the hub and the server, with several calls in flight, too. PSS of all is what "
        "they have at the end, between calls, so without the server where each call starts one.",
        "langchain-mcp-adapters starts a process and a session per call, unless one opens a session explicitly.",
        *version_notes(scale.variants),
    ])  # fmt: skip
    for server in scale.servers:
        samples = _measure(server, scale, outcome.notes)
        p50 = {variant: median(found.latencies_us) for variant, found in samples.items()}
        rows = [_row(variant, found, p50, scale) for variant, found in samples.items()]
        outcome.tables.append(Table(_title(server), _columns(scale), rows))
        outcome.raw[server.name] = {variant.label: found.raw() for variant, found in samples.items()}
        if server is scale.servers[0]:
            outcome.targets = _targets(p50)
    return outcome


def _measure(server: ServerCommand, scale: OverheadScale, notes: list[str]) -> dict[Variant, OverheadSamples]:
    with ExitStack() as stack:
        workers = start(server, scale.variants, stack, notes)
        samples = {variant: OverheadSamples() for variant in workers}
        for number, variant in interleaved(list(workers), scale.rounds):
            for in_flight in (1, *scale.in_flight):
                if variant.spawns and in_flight > 1:
                    continue  # bounded by the cores: every call is half a second of CPU
                calls = scale.spawns if variant.spawns else max(scale.calls, in_flight)
                cpu_s = tree_cpu_seconds(workers[variant].pid)
                answer = workers[variant].ask({"calls": calls, "in_flight": in_flight})
                if number > 0:
                    samples[variant].add(in_flight, answer, tree_cpu_seconds(workers[variant].pid) - cpu_s)
        for variant, found in samples.items():
            found.pss = sum(pss_bytes(process.pid) for process in tree(workers[variant].pid))
    return samples


def _row(variant: Variant, found: OverheadSamples, p50: dict[Variant, float], scale: OverheadScale) -> Json:
    calls = len(found.latencies_us)
    row = {
        "way": variant.label,
        "calls": calls,
        "p50_us": median(found.latencies_us),
        "p99_us": percentile(found.latencies_us, 0.99),
        "client_cpu_us": found.client_cpu_s / calls * 1e6,
        "hub_cpu_us": found.hub_cpu_s / calls * 1e6 if variant.has_hub else None,
        "all_cpu_us": found.all_cpu_s / found.all_calls * 1e6,
        "pss_mib": found.pss / 2**20,
        "vs_sdk": ratio(p50[variant], p50.get(_BASE)),
    }
    for in_flight in (1, *scale.in_flight):
        rates = found.per_s.get(in_flight)
        row[f"at_{in_flight}_per_s"] = median(rates) if rates else None
    return row


def _columns(scale: OverheadScale) -> list[Column]:
    return [
        Column("way", "way of calling"),
        Column("calls", "calls"),
        Column("p50_us", "p50 µs"),
        Column("p99_us", "p99 µs"),
        Column("vs_sdk", "p50 ÷ SDK", 2),
        Column("at_1_per_s", "calls/s", 1),
        *(Column(f"at_{n}_per_s", f"calls/s, {n} in flight") for n in scale.in_flight),
        Column("client_cpu_us", "client CPU µs/call"),
        Column("hub_cpu_us", "hub CPU µs/call"),
        Column("all_cpu_us", "CPU of all, µs/call"),
        Column("pss_mib", "PSS of all, MiB"),
    ]


def _title(server: ServerCommand) -> str:
    if server.name == "sdk":
        return "A server written with the SDK (`MCPServer`, stdio)"
    return "A server that costs nothing (20 µs), so that the client's cost is seen"


def _targets(p50: dict[Variant, float]) -> list[Target]:
    embedded = p50.get(_EMBEDDED)
    return [
        Target("embedded p50 ÷ SDK p50", ratio(embedded, p50.get(_BASE)), 1.2, "×"),
        Target("unix socket p50 ÷ SDK p50", ratio(p50.get(_SOCKET), p50.get(_BASE)), 2, "×"),
        Target("process per call p50 ÷ embedded p50", ratio(p50.get(_SPAWN), embedded), 300, "×", at_most=False),
    ]


BENCHMARK = Benchmark(
    "overhead",
    QUESTIONS["overhead"],
    run,
    full=OverheadScale(rounds=5, calls=150, spawns=1),
    quick=OverheadScale(rounds=3, calls=100, spawns=1),
)
