"""How many idle tasks does a machine hold? Memory of the MiroThinker servers per task, by how they are run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.agent_startup import SERVERS, Builtin
from benchmarks.common.measure import GIB
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.server_commands import ServerCommand, third_party_servers
from benchmarks.density.capacity import CapacityResult, DensityCase, measure_capacity
from benchmarks.questions import QUESTIONS

MIB = 2**20
# One of our servers as a process with its shim: some 60 MiB measured. The benchmark stops before memory is full.
_PROCESS_BYTES = 80 * MIB
_HOSTED_BYTES = 4 * MIB
OPEN_TASKS, SESSIONS = 1000, 300
OPEN_TASKS_BYTES, SESSIONS_BYTES = 1 * GIB, 8 * GIB

_EACH_COLUMNS = [
    Column("way", "way"),
    Column("first", "from"),
    Column("last", "to tasks"),
    Column("mib", "MiB each", 2),
    Column("percent", "% of exec", 1),
    Column("processes", "processes each", 2),
    Column("ms", "ms each"),
    Column("total", "MiB in all"),
    Column("left_behind", "left behind"),
]
_MANY_COLUMNS = [
    Column("way", "one hub, no calls"),
    Column("tasks", "open"),
    Column("wanted", "of"),
    Column("seconds", "opened after s", 1),
    Column("total", "PSS MiB in all"),
    Column("mib", "MiB each, with the hub", 2),
    Column("processes", "processes"),
    Column("left_behind", "left behind"),
]


@dataclass(frozen=True)
class DensityScale:
    """How many tasks. looks: at these two counts the memory is read, and the difference is what one more task takes.

    forked, spawned: the looks with `spawn: fork` and `spawn: exec`, whose tasks need much memory.
    budget_s: of each case.
    server: of the stdio sessions; None: mcp_server_time.
    """

    looks: tuple[int, int]
    forked: tuple[int, int]
    spawned: tuple[int, int]
    open_tasks: int
    sessions: int
    budget_s: float
    servers: tuple[Builtin, ...] = SERVERS
    server: ServerCommand | None = None


def run(scale: DensityScale) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        server = scale.server or third_party_servers(Path(directory))[0]
    cases = _cases(scale, server)
    packed = {name: measure_capacity(case) for name, case in cases.items()}
    outcome = Outcome(notes=_notes(scale))
    outcome.notes += [_stop(cases[name], p) for name, p in packed.items() if p.stopped]
    outcome.notes += [f"{cases[name].label}: {p.not_forked}." for name, p in packed.items() if p.not_forked]
    each = {name: _each(cases[name], packed[name]) for name in ("builtin", "builtin_yaml", "shared", "fork", "exec")}
    for row in each.values():
        part = ratio(row["mib"], each["exec"]["mib"])
        row["percent"] = None if part is None else part * 100
    many = {name: _many(cases[name], packed[name]) for name in ("builtin", "builtin_yaml", "sessions")}
    outcome.tables = [
        Table("The servers of MiroThinker: what each further idle task takes", _EACH_COLUMNS, [*each.values()]),
        Table("Many tasks", _MANY_COLUMNS, [*many.values()]),
    ]
    outcome.targets = _targets(many, sum(p.left_behind for p in packed.values()))
    outcome.raw = {name: asdict(p) for name, p in packed.items()}
    return outcome


def _cases(scale: DensityScale, server: ServerCommand) -> dict[str, DensityCase]:
    count = len(scale.servers)

    def hosted(label: str, *, shared: bool) -> DensityCase:
        entries = {builtin.name: builtin.entry(shared=shared) for builtin in scale.servers}
        counts = (*scale.looks, scale.open_tasks)
        return DensityCase(label, entries, counts, scale.budget_s, OPEN_TASKS_BYTES, _HOSTED_BYTES, step=50)

    def spawned(label: str, counts: tuple[int, int], **fields: str) -> DensityCase:
        entries = {builtin.name: _program(builtin, **fields) for builtin in scale.servers}
        return DensityCase(label, entries, counts, scale.budget_s, 12 * GIB, count * _PROCESS_BYTES)

    session = DensityCase(
        f"{server.name}, share: task, spawn: fork",
        {server.name: server.config(share="task", spawn="fork")},
        (scale.sessions,),
        scale.budget_s,
        SESSIONS_BYTES,
        _PROCESS_BYTES,
        step=20,
    )
    return {
        "builtin": hosted("builtin, a session per task and server", shared=False),
        "builtin_yaml": hosted("builtin, shared as in mirothinker_1.7.yaml", shared=True),
        "shared": spawned("share: hub, one process per server", scale.looks, share="hub"),
        "fork": spawned("share: task, spawn: fork", scale.forked, share="task", spawn="fork"),
        "exec": spawned("share: task, spawn: exec", scale.spawned, share="task", spawn="exec"),
        "sessions": session,
    }


def _program(builtin: Builtin, **fields: str) -> Json:
    program = builtin.program
    return {"command": program["argv"][0], "args": program["argv"][1:], "env": program["env"], **fields}


# --- tables -------------------------------------------------------------------------------------------------------


def _each(case: DensityCase, packed: CapacityResult) -> Json:
    """What one more task takes: the difference between the first two looks."""
    row: Json = {"way": case.label, "mib": None, "left_behind": packed.left_behind}
    if len(packed.sizes) < 2 or packed.sizes[1].tasks <= packed.sizes[0].tasks:
        return row
    first, last = packed.sizes[:2]
    more = last.tasks - first.tasks
    return row | {
        "first": first.tasks,
        "last": last.tasks,
        "mib": (last.bytes - first.bytes) / MIB / more,
        "processes": (last.processes - first.processes) / more,
        "ms": (last.seconds - first.seconds) * 1e3 / more,
        "total": last.bytes / MIB,
    }


def _many(case: DensityCase, packed: CapacityResult) -> Json:
    row: Json = {"way": case.label, "wanted": case.counts[-1], "tasks": 0, "left_behind": packed.left_behind}
    if not packed.sizes:
        return row
    last = packed.sizes[-1]
    each = ratio(last.bytes / MIB, last.tasks)
    size = {"total": last.bytes / MIB, "mib": each, "processes": last.processes}
    return row | {"tasks": last.tasks, "seconds": last.seconds, **size}


def _stop(case: DensityCase, packed: CapacityResult) -> str:
    reached = packed.sizes[-1].tasks if packed.sizes else 0
    return f"{case.label}: stopped early, at {reached} of {case.counts[-1]} tasks; {packed.stopped}."


# --- verdict ------------------------------------------------------------------------------------------------------


def _targets(many: Mapping[str, Json], left_behind: int) -> list[Target]:
    return [
        _total(f"{OPEN_TASKS:,} open tasks, builtin with a session each", many["builtin"], OPEN_TASKS, 1),
        _total(f"{OPEN_TASKS:,} open tasks, builtin as in the config", many["builtin_yaml"], OPEN_TASKS, 1),
        _total(f"{SESSIONS} sessions with spawn: fork", many["sessions"], SESSIONS, 8),
        Target("processes left behind", left_behind, 0),
    ]


def _total(claim: str, row: Json, count: int, limit_gib: float) -> Target:
    """Fewer tasks than planned prove nothing, unless they have already taken too much."""
    gib = row["total"] / 1024 if "total" in row else None
    is_telling = gib is not None and (row["tasks"] >= count or gib > limit_gib)
    return Target(f"{claim}, memory in all", gib if is_telling else None, limit_gib, "GiB")


def _notes(scale: DensityScale) -> list[str]:
    names = ", ".join(builtin.name for builtin in scale.servers)
    return [
        f"The servers are {names}, with keys that do not work: nothing is called, so that no sandbox is started. As "
        "processes they are `python -m toolhub_servers NAME`. A task is open once each of its servers has itself "
        "answered `tools/list`.",
        "Memory is PSS (shared pages are split among their users) of the hub and of everything below it, supervisor, "
        "shims and zygotes included. `Each` is the difference between two looks at the same hub, by the tasks opened "
        "in between (from, to tasks); what comes with the first tasks is not in it. In all: at the second look.",
        "`share: hub` with processes would mix the sandboxes of tasks; it is here to show what a task costs that has "
        "no process of its own.",
        f"Tasks are opened in groups of 10 to 50. A case has {scale.budget_s:g} s, and opens nothing that might leave "
        "less than 2 GiB available.",
    ]


BENCHMARK = Benchmark(
    "density",
    QUESTIONS["density"],
    run,
    full=DensityScale(
        looks=(10, 60), forked=(10, 60), spawned=(4, 12), open_tasks=OPEN_TASKS, sessions=SESSIONS, budget_s=36.0
    ),
    quick=DensityScale(looks=(10, 60), forked=(4, 12), spawned=(1, 3), open_tasks=100, sessions=20, budget_s=9.0),
)
