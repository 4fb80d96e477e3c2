"""A sweep begins: how long until all its tasks can work, and what have they taken by then?

Ready is a task's server that has answered `tools/list` itself. The hub's catalog would answer without the server,
so the benchmark sends the MCP request itself.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.callers import check
from benchmarks.common.measure import (
    GIB,
    ProcessCounter,
    not_forked,
    room_bytes,
    tree,
    tree_cpu_seconds,
    tree_pss_bytes,
)
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.server_commands import ServerCommand, third_party_servers
from benchmarks.common.session_setup import gather_all, open_variant, through_hub
from benchmarks.common.subprocess_worker import Worker, WorkerFailed
from benchmarks.common.worker_main import Act
from benchmarks.questions import QUESTIONS
from testbed import third_party
from toolhub import HubTask

MIB = 2**20
# One Python server with the SDK takes 41 MiB, measured. The benchmark stops before memory is full.
_PROCESS_BYTES = 60 * MIB
_COLUMNS = [
    Column("way", "way"),
    Column("seconds", "wall s", 2),
    Column("faster", "× as fast", 1),
    Column("ready", "ready"),
    Column("wanted", "of"),
    Column("failures", "failed"),
    Column("cpu_s", "CPU s", 1),
    Column("peak_processes", "peak processes"),
    Column("pss_mib", "PSS MiB when ready"),
    Column("percent", "% of 1st"),
    Column("left_behind", "left behind"),
]
TASKS = 60
_BUILTIN = ("clock", "files", "sqlite")


@dataclass(frozen=True)
class StormVariant:
    """fields: of each of the servers in the hub's config; None: no hub, or none of these servers."""

    label: str
    fields: Json | None = None
    has_processes: bool = True
    """Whether each pair of a task and a server has a process of its own."""
    is_builtin: bool = False


VARIANTS = {
    "gather": StormVariant("SDK sessions, exec, all at once"),
    "exec": StormVariant("toolhub, spawn: exec", {"share": "task", "spawn": "exec"}),
    "fork": StormVariant("toolhub, spawn: fork, first hub ever", {"share": "task", "spawn": "fork"}),
    "shared": StormVariant("toolhub, share: hub", {"share": "hub"}, has_processes=False),
    "builtin": StormVariant(
        "toolhub, builtin: OTHER programs",
        has_processes=False,
        is_builtin=True,
    ),
}


@dataclass(frozen=True)
class StormScale:
    """deadline_s: of each variant."""

    tasks: int
    deadline_s: float
    servers: tuple[ServerCommand, ...] | None = None
    """None: three third-party servers in Python."""
    variants: dict[str, StormVariant] = field(default_factory=lambda: VARIANTS)


# --- inside -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_storm(
    servers: list[Json], tasks: int, entries: dict[str, Json] | None, state: str
) -> AsyncIterator[Act]:
    """See `session_setup.open_variant`. entries: the servers in the hub's config; None: no hub. A worker role."""
    variant = (
        functools.partial(gather_all, servers, tasks, in_session=_list_tools)
        if entries is None
        else functools.partial(
            through_hub, servers, tasks, entries=entries, state=Path(state), in_task=_list_tools_in_task
        )
    )
    async with open_variant(variant, tasks * len(servers)) as act:
        yield act


async def _list_tools(session: Any, _: Json) -> None:
    check(not (await session.list_tools()).tools)


async def _list_tools_in_task(task: HubTask, server: Json) -> None:
    check(not (await task.request(server["name"], "tools/list"))["tools"])


# --- outside ------------------------------------------------------------------------------------------------------


def run(scale: StormScale) -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as directory:
        storm = _Storm(scale, list(scale.servers or python_servers(Path(directory))), outcome)
        # Read the servers' files once, so that the first variant does not read them from the disk for all.
        storm.measure("gather", tasks=1)
        rows = {name: storm.measure(name, tasks=scale.tasks) for name in scale.variants}
    _compare(rows)
    title = f"{scale.tasks} tasks × {len(storm.servers)} servers, until each has answered `tools/list`"
    outcome.tables = [Table(title, _COLUMNS, list(rows.values()))]
    outcome.targets = _targets(rows, scale.tasks)
    outcome.notes = [*_notes(storm.servers, scale), *outcome.notes]
    return outcome


def python_servers(directory: Path) -> list[ServerCommand]:
    """Three servers that others wrote, in Python. directory: where a git repository is made for the git server."""
    time, git, _ = third_party_servers(directory)
    older = [str(third_party.mcp1_python()), *time.argv[1:]]
    return [time, git, ServerCommand("time_sdk1", older, time.tool, time.arguments)]


@dataclass
class _Storm:
    """Measures one variant after the other; the outcome's notes say what went wrong."""

    scale: StormScale
    servers: list[ServerCommand]
    outcome: Outcome

    def measure(self, name: str, *, tasks: int) -> Json:
        """Return the variant's row of the table."""
        with tempfile.TemporaryDirectory() as state:
            return self._start(name, tasks, state)

    def _start(self, name: str, tasks: int, state: str) -> Json:
        variant = self.scale.variants[name]
        arguments = self._arguments(variant)
        row: Json = {"way": variant.label, "ready": 0, "wanted": tasks * len(arguments["servers"])}
        needed = row["wanted"] * _PROCESS_BYTES * variant.has_processes
        if needed > room_bytes():
            self._note(
                variant, tasks, f"was not run: it may take {needed / GIB:.1f} GiB, too much of what is available"
            )
            return row
        worker = Worker("benchmarks.storm.benchmark:open_storm", {**arguments, "tasks": tasks, "state": state})
        try:
            found = self._watch(worker)
        except WorkerFailed as exc:
            self._note(variant, tasks, f"did not finish: {exc}")
            return row
        finally:
            worker.close()
        self.outcome.raw[f"{name}/{tasks}"] = found
        if variant.has_processes and found["processes"] < found["ready"]:
            self._note(variant, tasks, f"has {found['processes']} processes below it, so its memory is not all counted")
        if told := not_forked(Path(state)):
            self._note(variant, tasks, told)
        if found["failures"]:
            self._note(variant, tasks, f"failed {len(found['failures'])} times, first with {found['failures'][0]}")
        measured = {**found, "failures": len(found["failures"]), "pss_mib": found["pss_bytes"] / MIB}
        return {**row, **measured, "left_behind": worker.left_behind}

    def _watch(self, worker: Worker) -> Json:
        worker.wait_ready()
        before = tree_cpu_seconds(worker.pid)
        with ProcessCounter(worker.pid) as counter:
            request = {"deadline_s": self.scale.deadline_s}
            answer = worker.ask(request, within=self.scale.deadline_s + 60)
            cpu_s = tree_cpu_seconds(worker.pid) - before
            counter.sample()
        processes = len(tree(worker.pid)) - 1
        peak = counter.peak_processes - 1  # without the client or hub itself
        size = {"pss_bytes": tree_pss_bytes(worker.pid), "processes": processes, "peak_processes": peak}
        return {**answer, "cpu_s": cpu_s, **size}

    def _arguments(self, variant: StormVariant) -> Json:
        if variant.is_builtin:
            builtin = {name: {"builtin": name} for name in _BUILTIN}
            return {"servers": [{"name": name} for name in builtin], "entries": builtin}
        entries = None if variant.fields is None else {s.name: s.config(**variant.fields) for s in self.servers}
        return {"servers": [server.to_json() for server in self.servers], "entries": entries}

    def _note(self, variant: StormVariant, tasks: int, what: str) -> None:
        self.outcome.notes.append(f"{variant.label}, {tasks} task{'s' * (tasks > 1)}: {what}.")


# --- verdict ------------------------------------------------------------------------------------------------------


def _compare(rows: dict[str, Json]) -> None:
    """Add to each row its ratio to the first row, if both got everything ready."""
    first = next(iter(rows.values()))
    for row in rows.values():
        if row["ready"] == row["wanted"] and first["ready"] == first["wanted"]:
            row["faster"] = ratio(first["seconds"], row["seconds"])
            row["percent"] = 100 * row["pss_mib"] / first["pss_mib"]


def _targets(rows: dict[str, Json], tasks: int) -> list[Target]:
    """Return the targets. Sharing pays off with many tasks, so small runs have none."""
    ours = [row for name, row in rows.items() if name != "gather"]
    fork, shared, builtin = (rows.get(name, {}) if tasks >= TASKS else {} for name in ("fork", "shared", "builtin"))
    than = f"times as fast as SDK sessions, {TASKS} tasks"
    return [
        Target(f"spawn: fork, first hub ever, {than}", fork.get("faster"), 5, "×", at_most=False),
        Target(f"spawn: fork, first hub ever, of their memory, {TASKS} tasks", fork.get("percent"), 40, "%"),
        Target(f"share: hub, {than}", shared.get("faster"), 30, "×", at_most=False),
        Target(f"builtin, {than}", builtin.get("faster"), 100, "×", at_most=False),
        Target("pairs not ready, all rows of toolhub", sum(row["wanted"] - row["ready"] for row in ours), 0),
        Target("processes left behind, all rows of toolhub", sum(row.get("left_behind", 0) for row in ours), 0),
    ]


def _notes(servers: list[ServerCommand], scale: StormScale) -> list[str]:
    names = ", ".join(server.name for server in servers)
    return [
        f"The servers are {names}; in the rows with `spawn` each task has a process of each. `time_sdk1` is `time` on "
        "the SDK's first major, with an interpreter and libraries of its own.",
        f"The last row has three servers of toolhub's own ({', '.join(_BUILTIN)}) in place of these, inside the hub: "
        "it says what a server costs that is written for it, not what these three would.",
        "Ready is a pair of a task and a server that itself, not the hub's catalog, has answered. × as fast, and % of "
        "PSS, are beside the first row. A hub is opened within the time that is measured.",
        "CPU and PSS are of the client or hub and of everything below it, supervisor, shims and zygotes included; "
        "peak processes is without the client or hub. PSS splits shared pages among their users and is read once, when "
        "the last pair is ready. Processes left behind are looked for after the client or hub has closed.",
        "First hub ever: its state directory is empty.",
        f"A way has {scale.deadline_s:g} s; what was ready by then is counted. Before the first row the SDK has "
        "started each server once.",
    ]


BENCHMARK = Benchmark(
    "storm",
    QUESTIONS["storm"],
    run,
    # `exec` takes a minute with a whole sweep, and `init` has it beside the same SDK sessions.
    full=StormScale(
        tasks=TASKS, deadline_s=120.0, variants={name: VARIANTS[name] for name in VARIANTS if name != "exec"}
    ),
    quick=StormScale(tasks=6, deadline_s=20.0),
)
