"""What does an idle session cost? Memory, descriptors and threads of a hub that holds many and does nothing."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common.measure import cpu_seconds, pss_bytes, rss_bytes, tree
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, hub_config
from benchmarks.common.server_commands import ServerCommand, fixture_echo
from benchmarks.common.subprocess_worker import Worker
from benchmarks.common.worker_main import Act
from benchmarks.questions import QUESTIONS
from toolhub import Hub

MIB = 2**20
# Watched for this long to see that idle means idle.
_WATCH_S = 10.0
_COLUMNS = [
    Column("sessions", "sessions"),
    Column("hub_rss_mib", "hub RSS MiB", 1),
    Column("hub_pss_mib", "hub PSS MiB", 1),
    Column("shims_pss_mib", "supervisor and shims PSS MiB", 1),
    Column("servers_pss_mib", "servers PSS MiB", 1),
    Column("fds", "hub fds"),
    Column("threads", "hub threads"),
    Column("idle_cpu_ms_per_s", "hub CPU ms/s", 1),
]


@dataclass(frozen=True)
class IdleScale:
    """sessions: at least two numbers. The same hub grows to each of them in turn, and each is a row."""

    sessions: tuple[int, ...]
    watch_s: float = _WATCH_S


@asynccontextmanager
async def open_hub(server: Json) -> AsyncIterator[Act]:
    """Answers ``{"sessions": n}`` once n tasks have a session each. A worker role."""
    entry = {"command": server["argv"][0], "args": server["argv"][1:], "share": "task"}
    with tempfile.TemporaryDirectory() as state:
        async with Hub(hub_config({"echo": entry}, Path(state))) as hub:

            async def act(request: Json) -> Json:
                while len(hub.tasks) < request["sessions"]:
                    task = await hub.open_task()
                    await task.call("echo", server["tool"], server["arguments"])
                return {"sessions": len(hub.tasks)}

            yield act


def run(scale: IdleScale) -> Outcome:
    outcome = Outcome(notes=["The hub's process also runs the benchmark's own request loop (one thread, two pipes)."])
    server = fixture_echo()
    with Worker("benchmarks.idle.benchmark:open_hub", {"server": server.to_json()}) as worker:
        rows = []
        for sessions in scale.sessions:
            worker.ask({"sessions": sessions})
            rows.append(_look(worker.pid, sessions, server, scale.watch_s))
    outcome.tables = [Table("One hub, `share: task`, a server on the standard library alone", _COLUMNS, rows)]
    last = rows[-1]
    outcome.tables.append(_slope(rows[-2], last))
    outcome.raw = {"rows": rows}
    outcome.targets = [Target(f"hub RSS with {last['sessions']} idle sessions", last["hub_rss_mib"], 90, "MiB")]
    return outcome


def _look(pid: int, sessions: int, server: ServerCommand, watch_s: float) -> Json:
    hub = psutil.Process(pid)
    before = cpu_seconds(pid)
    psutil.wait_procs([hub], timeout=watch_s)  # the worker ends only by a crash, which cuts this pause short
    used = cpu_seconds(pid) - before
    below = [process.pid for process in tree(pid)[1:]]
    servers = {child for child in below if server.argv[-1] in psutil.Process(child).cmdline()}
    return {
        "sessions": sessions,
        "hub_rss_mib": rss_bytes(pid) / MIB,
        "hub_pss_mib": pss_bytes(pid) / MIB,
        "shims_pss_mib": sum(pss_bytes(child) for child in below if child not in servers) / MIB,
        "servers_pss_mib": sum(map(pss_bytes, servers)) / MIB,
        "fds": hub.num_fds(),
        "threads": hub.num_threads(),
        "idle_cpu_ms_per_s": used / watch_s * 1e3,
    }


def _slope(first: Json, last: Json) -> Table:
    """What one session adds. The first row is the base, so that the supervisor does not count."""
    count = last["sessions"] - first["sessions"]
    kib = {key: (last[key] - first[key]) * 1024 / count for key in ("hub_rss_mib", "shims_pss_mib", "servers_pss_mib")}
    each = {key: (last[key] - first[key]) / count for key in ("fds", "threads")}
    columns = [
        Column("what", "per session"),
        Column("hub_rss_mib", "hub RSS KiB", 0),
        Column("shims_pss_mib", "shims PSS KiB", 0),
        Column("servers_pss_mib", "server PSS KiB", 0),
        Column("fds", "hub fds", 2),
        Column("threads", "hub threads", 2),
    ]
    return Table("What one session adds", columns, [{"what": f"mean of {count}", **kib, **each}])


BENCHMARK = Benchmark(
    "idle",
    QUESTIONS["idle"],
    run,
    full=IdleScale(sessions=(0, 1, 100), watch_s=8.0),
    quick=IdleScale(sessions=(0, 1, 20), watch_s=2.0),
)
