"""What does an MCP gateway cost? toolhub's `/mcp` and fastmcp's proxy take turns with direct calls, in one run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.baselines import FASTMCP
from benchmarks.common.measure import interleaved, median
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.server_commands import lean_echo, sdk_echo
from benchmarks.common.subprocess_worker import Worker
from benchmarks.common.variants import Variant, start
from benchmarks.overhead.benchmark import OverheadSamples
from benchmarks.questions import QUESTIONS

_DIRECT = Variant("direct", "SDK, no gateway")
_TOOLHUB = Variant("http", "toolhub /mcp", has_hub=True)
_FASTMCP = Variant("fastmcp_proxy", "fastmcp proxy", environment=FASTMCP, has_hub=True)
_MODERN = "2026-07-28"
MODES = {"legacy": "2025-11-25", _MODERN: "2026-07-28"}
"""How `mcp.Client` connects, and the revision that it then speaks."""
_STDIO, _HTTP = "stdio", "HTTP"
_SEVERAL = 8

MOST_TIMES_DIRECT = 1.6
MOST_HUB_CPU_MS = 0.4
LEAST_TIMES_FASTMCP = 3
MOST_START_MS = 150


@dataclass(frozen=True)
class GatewayScale:
    """calls: per variant, round and number in flight. starts: how often `toolhub stdio` starts after a warm-up."""

    rounds: int
    calls: int
    starts: int


@dataclass(frozen=True)
class _Way:
    """One row: a variant with the transport of its server and the revision of its client."""

    variant: Variant
    upstream: str
    mode: str


def run(scale: GatewayScale) -> Outcome:
    outcome = Outcome(notes=[
        "Every client, gateway and server is a process of its own, on one machine; they take turns, round 0 is "
        "discarded. Clients are the SDK's over HTTP on loopback. Over HTTP all reach one server, written with the SDK; "
        "over stdio each gateway starts its own, which costs nothing (20 µs).",
        "Hub CPU is that of the gateway's process, one call at a time, in steps of 10 ms. Clients "
        "of revision 2026-07-28 name their task.",
        "The direct call is always to the server over HTTP, so the ratios of rows over stdio compare two servers.",
        "Start: from the start of the process with one server to the answer to `initialize`.",
    ])  # fmt: skip
    found = _measure(scale, outcome.notes)
    direct = {way.mode: median(samples.latencies_us) for way, samples in found.items() if way.variant == _DIRECT}
    rows = [_row(way, samples, direct.get(way.mode)) for way, samples in found.items()]
    starts = {name: _start_ms(argv, scale.starts) for name, argv in _programs().items()}
    outcome.tables = [
        Table("One call through a gateway", _COLUMNS, rows),
        Table(
            "Start of a server on stdio",
            [Column("way", "program"), Column("p50_ms", "p50 ms, start to initialize")],
            [{"way": name, "p50_ms": median(times)} for name, times in starts.items()],
        ),
    ]
    outcome.targets = [
        *_targets(rows),
        Target("toolhub stdio answers initialize", median(starts[_OURS]), MOST_START_MS, "ms"),
    ]
    outcome.raw = {f"{way.variant.label}, {way.upstream}, {way.mode}": samples.raw() for way, samples in found.items()}
    outcome.raw["starts_ms"] = starts
    return outcome


def _measure(scale: GatewayScale, notes: list[str]) -> dict[_Way, OverheadSamples]:
    with ExitStack() as stack:
        upstream = stack.enter_context(Worker("benchmarks.common.hub_process:open_sdk_echo", {}, uvloop=True))
        servers = {_HTTP: replace(sdk_echo(), url=upstream.ask({})["address"]), _STDIO: lean_echo()}
        workers: dict[_Way, Worker] = {}
        for transport, server in servers.items():
            for mode, revision in MODES.items():
                variants: tuple[Variant, ...] = (_DIRECT, _TOOLHUB, _FASTMCP)
                if transport == _STDIO:
                    variants = (_TOOLHUB, _FASTMCP)
                asked = replace(server, name=f"{transport}, {revision}", mode=mode)
                for variant, worker in start(asked, variants, stack, notes).items():
                    workers[_Way(variant, transport, mode)] = worker
        found = {way: OverheadSamples() for way in workers}
        for number, way in interleaved(list(workers), scale.rounds):
            for in_flight in (1, _SEVERAL):
                answer = workers[way].ask({"calls": max(scale.calls, in_flight), "in_flight": in_flight})
                if number > 0:
                    found[way].add(in_flight, answer, 0.0)
    return found


_COLUMNS = [
    Column("way", "way of calling"),
    Column("calls", "calls"),
    Column("p50_us", "p50 µs"),
    Column("vs_direct", "p50 ÷ direct", 2),
    Column("hub_cpu_us", "hub CPU µs/call"),
    Column("at_8_per_s", "calls/s, 8 in flight"),
]


def _row(way: _Way, samples: OverheadSamples, direct_us: float | None) -> Json:
    calls, p50 = len(samples.latencies_us), median(samples.latencies_us)
    return {
        "way": _label(way.variant, way.upstream, way.mode),
        "calls": calls,
        "p50_us": p50,
        "vs_direct": ratio(p50, direct_us),
        "hub_cpu_us": samples.hub_cpu_s / calls * 1e6 if way.variant.has_hub else None,
        "at_8_per_s": median(samples.per_s[_SEVERAL]),
    }


def _label(variant: Variant, upstream: str, mode: str) -> str:
    return f"{variant.label}, server over {upstream}, {MODES[mode]}"


def _targets(rows: list[Json]) -> list[Target]:
    by_way = {row["way"]: row for row in rows}
    targets = []
    for upstream in (_STDIO, _HTTP):
        for mode, revision in MODES.items():
            where = f"server over {upstream}, {revision}"
            ours = by_way.get(_label(_TOOLHUB, upstream, mode), {})
            theirs = by_way.get(_label(_FASTMCP, upstream, mode), {})
            cpu_us = ours.get("hub_cpu_us")
            rates = ratio(ours.get("at_8_per_s"), theirs.get("at_8_per_s"))
            targets += [
                Target(f"p50 ÷ direct, {where}", ours.get("vs_direct"), MOST_TIMES_DIRECT, "×"),
                Target(f"hub CPU per call, {where}", cpu_us and cpu_us / 1e3, MOST_HUB_CPU_MS, "ms"),
            ]
            name = f"calls/s ÷ fastmcp proxy, 8 in flight, {where}"
            targets.append(Target(name, rates, LEAST_TIMES_FASTMCP, "×", at_most=False))
    return targets


_OURS = "toolhub stdio"


def _programs() -> dict[str, list[str]]:
    return {
        "the server itself": lean_echo().argv,
        _OURS: [sys.executable, "-m", "toolhub", "stdio", "--config", "hub.json"],
    }


def _start_ms(argv: list[str], starts: int) -> list[float]:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode() + b"\n"
    times = []
    with tempfile.TemporaryDirectory() as home:
        config = {"hub": {"state_dir": home}, "servers": {"echo": lean_echo().config()}}
        Path(home, "hub.json").write_text(json.dumps(config))
        for _ in range(starts + 1):
            began = time.perf_counter()
            with subprocess.Popen(
                argv, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as program:
                assert program.stdin is not None and program.stdout is not None
                program.stdin.write(line)
                program.stdin.flush()
                answer = json.loads(program.stdout.readline())
                times.append((time.perf_counter() - began) * 1e3)
                program.stdin.close()
            if "result" not in answer:
                raise RuntimeError(f"{argv} refused to initialize: {answer}")
    return times[1:]


BENCHMARK = Benchmark(
    "gateway",
    QUESTIONS["gateway"],
    run,
    full=GatewayScale(rounds=5, calls=200, starts=5),
    quick=GatewayScale(rounds=2, calls=50, starts=2),
)
