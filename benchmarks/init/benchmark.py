"""How long until many tasks can work? Every tool of every server listed, and one call answered by each."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.measure import TreeSampler, tree_cpu_seconds
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.server_commands import ServerCommand, third_party_servers
from benchmarks.common.subprocess_worker import Worker, WorkerFailed
from benchmarks.questions import QUESTIONS

LABELS = {
    "spawn_in_turn": "process per use, in turn (MiroFlow)",
    "gather_all": "SDK sessions, all at once",
    "hub_per_task": "toolhub, share: task",
    "hub_shared": "toolhub, share: hub",
}
_COLUMNS = [
    Column("way", "way"),
    Column("seconds", "wall s", 2),
    Column("ready", "ready"),
    Column("wanted", "of"),
    Column("failures", "failed"),
    Column("cpu_s", "CPU s", 1),
    Column("peak_processes", "peak processes"),
    Column("peak_pss_mib", "peak PSS MiB"),
    Column("left_behind", "left behind"),
]


@dataclass(frozen=True)
class InitScale:
    """tasks: one table for each number. in_turn_up_to: with more tasks, the variant without concurrency is left out."""

    tasks: tuple[int, ...]
    in_turn_up_to: int
    deadline_s: float = 300.0
    servers: tuple[ServerCommand, ...] | None = None
    """None: the three third-party servers."""


def run(scale: InitScale) -> Outcome:
    outcome = Outcome(notes=[
        "CPU is that of the client or hub and of everything below it until the last task was ready. PSS splits shared "
        "pages among their users. Both are sampled ten times a second, less often where that costs too much.",
        f"A way has {scale.deadline_s:g} s; what was ready by then is counted.",
    ])  # fmt: skip
    with tempfile.TemporaryDirectory() as repository:
        servers = list(scale.servers) if scale.servers else third_party_servers(Path(repository))
        for tasks in scale.tasks:
            variants = [variant for variant in LABELS if variant != "spawn_in_turn" or tasks <= scale.in_turn_up_to]
            rows = [_measure(variant, servers, tasks, scale, outcome) for variant in variants]
            plural = "s" if tasks > 1 else ""
            outcome.tables.append(Table(f"{tasks} task{plural} × {len(servers)} servers", _COLUMNS, rows))
    if max(scale.tasks) > scale.in_turn_up_to:
        outcome.notes.append(
            f"In turn was not run with more than {scale.in_turn_up_to} tasks, and is not extrapolated."
        )
    outcome.targets = _targets(outcome.tables[-1].rows, scale.tasks[-1])
    return outcome


def _measure(variant: str, servers: list[ServerCommand], tasks: int, scale: InitScale, outcome: Outcome) -> Json:
    wanted = tasks * len(servers)
    arguments = {"variant": variant, "servers": [server.to_json() for server in servers], "tasks": tasks}
    worker = Worker("benchmarks.common.session_setup:open_tasks", arguments)
    try:
        worker.wait_ready()
        before = tree_cpu_seconds(worker.pid)
        with TreeSampler(worker.pid) as sampler:
            answer = worker.ask({"deadline_s": scale.deadline_s}, within=scale.deadline_s + 60)
            sampler.sample()
        cpu_s = tree_cpu_seconds(worker.pid) - before
    except WorkerFailed as exc:
        outcome.notes.append(f"{LABELS[variant]} with {tasks} tasks did not finish: {exc}.")
        return {"way": LABELS[variant], "ready": 0, "wanted": wanted}
    finally:
        worker.close()
    outcome.raw[f"{variant}/{tasks}"] = {**answer, "cpu_s": cpu_s, "peak_pss_bytes": sampler.peak_pss_bytes}
    return {
        "way": LABELS[variant],
        "seconds": answer["seconds"],
        "ready": answer["ready"],
        "wanted": wanted,
        "failures": len(answer["failures"]),
        "cpu_s": cpu_s,
        "peak_processes": sampler.peak_processes - 1,  # without the client or hub itself
        "peak_pss_mib": sampler.peak_pss_bytes / 2**20,
        "left_behind": worker.left_behind,
    }


def _targets(rows: list[Json], tasks: int) -> list[Target]:
    """Return the targets. They are about the largest number of tasks."""
    by_variant = {row["way"]: row for row in rows}
    hub, shared, gathered = (by_variant[LABELS[variant]] for variant in ("hub_per_task", "hub_shared", "gather_all"))
    unready = sum(row["wanted"] - row["ready"] for row in (hub, shared))
    seconds = ratio(hub.get("seconds"), gathered.get("seconds"))
    return [
        Target(f"pairs not ready with {tasks} tasks, both hub rows", unready, 0),
        Target(f"share: task ÷ all at once, wall time with {tasks} tasks", seconds, 1.2, "×"),
    ]


BENCHMARK = Benchmark(
    "init",
    QUESTIONS["init"],
    run,
    full=InitScale(tasks=(1, 5, 20), in_turn_up_to=5),
    quick=InitScale(tasks=(1, 5), in_turn_up_to=5),
)
