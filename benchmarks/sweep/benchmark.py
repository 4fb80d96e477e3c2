"""Does a hub last a sweep? Four hours of two runs in minutes, with servers that die on the way.

Each run is a process of its own with up to 60 agents at once, 130 calls each; the hub is `toolhub serve`. Pauses and
tool times are log-normal as in an agent's day, and divided by `Pace.compressed`: a call each 48 s becomes one each
0.27 s. What hours do to a hub by their number of calls, tasks and deaths they do here; what they
do by their length alone (idle timers of many minutes, say) they do not.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import anyio
import anyio.to_thread

from benchmarks.common.hub_process import ServedHub
from benchmarks.common.leak_watch import HubHistory, LeakWatcher, open_client
from benchmarks.common.measure import cpu_seconds, median, percentile
from benchmarks.common.result import ROOT, Benchmark, Column, Json, Outcome, Table, Target
from benchmarks.common.server_commands import lean_echo
from benchmarks.common.subprocess_worker import Worker
from benchmarks.questions import QUESTIONS
from benchmarks.sweep.agents import MIX, Pace

RUNS = ("a", "b")
_SCRIPT = ROOT / "benchmarks" / "overload" / "slow_service.py"
# Servers are killed between these parts of the expected time: not while tasks begin or end.
_KILLS_FROM, _KILLS_TO = 0.15, 0.85
_ASK_S = 900.0
# This many calls are still part of the warm-up: the allocator's arenas fill until some 60,000 calls, and over 300,000
# the same hub does not grow. `soak` measures growth after that, per million calls.
# A leak of one record of a call (a KiB or more each) is 10,000 KiB per 10,000 calls, some 8 % of a hub with 120 tasks.
# A quarter of that is noticed, and the noise of an allocator is not.
SLOPE_PERCENT = 2.0
# With fewer calls the allocator's steps hide a leak.
_ENOUGH_CALLS = 10_000
# Connections that the clients keep come and go. One descriptor lost per 1,000 calls would be some twenty.
_FD_NOISE = 10
_MIB = 1024


@dataclass(frozen=True)
class SweepScale:
    """tasks and at_once: of each run. kills: of servers, on purpose. short: tasks of each run with 3 calls, after."""

    tasks: int
    at_once: int
    calls: int
    pace: Pace
    kills: int
    short: int


@dataclass
class SweepResults:
    watch: HubHistory
    after: HubHistory
    """The samples while the short tasks come and go."""
    tallies: list[Json] = field(default_factory=list)
    short: list[Json] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    left_behind: int = 0
    executed: Counter[str] = field(default_factory=Counter)

    def total(self, key: str) -> int:
        return sum(_number(tally[key]) for tally in [*self.tallies, *self.short])


def _number(count: int | Json) -> int:
    return count if isinstance(count, int) else sum(count.values())


def servers(folder: Path, pace: Pace) -> dict[str, Json]:
    """The config: three servers in the hub's process, a shared one and one for each task with processes."""
    own = lean_echo()
    read_only = {"read_only": True}
    return {
        "clock": {"builtin": "clock", "share": "hub"},
        "planner": {
            "builtin": "task_planner",
            "options": {"data_dir": str(folder / "plans")},
            "tools": {"policy": {"list_todos": read_only}},
        },
        "search": {
            "builtin": "benchmarks.common.slow_tool:create_server",
            "options": {"seconds": pace.tool_s / pace.compressed, "text": "found"},
            "share": "hub",
        },
        "shared": {
            "command": sys.executable,
            "args": ["-S", str(_SCRIPT), "--ledger", str(folder / "ledger")],
            "share": "hub",
            "concurrency": 256,
            "tools": {"policy": {"work": read_only}},
        },
        "own": own.config(tools={"policy": {"echo": read_only}}),
    }


def run(scale: SweepScale) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        found = anyio.run(_measure, scale, Path(folder))
    outcome = Outcome(notes=_notes(scale, found))
    outcome.tables = [_calls_table(scale, found), _hub_table(found), _growth_table(found)]
    outcome.targets = _targets(found)
    outcome.raw = {
        "samples": [asdict(sample) for sample in found.watch.samples],
        "short_samples": [asdict(sample) for sample in found.after.samples],
        "runs": found.tallies,
        "short": found.short,
    }
    return outcome


async def _measure(scale: SweepScale, folder: Path) -> SweepResults:
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker("benchmarks.sweep.agents:open_agents", {})) for _ in RUNS]
        hub = stack.enter_context(ServedHub(servers(folder, scale.pace)))
        async with open_client(hub.socket) as client:
            found = SweepResults(HubHistory(), HubHistory())
            expected_s = scale.calls * scale.pace.mean_s * -(-scale.tasks // scale.at_once)
            source = random.Random(scale.kills)
            kills = [expected_s * source.uniform(_KILLS_FROM, _KILLS_TO) for _ in range(scale.kills)]
            watcher, cpu = LeakWatcher(hub.pid, client), cpu_seconds(hub.pid)
            found.watch = watcher.seen
            found.tallies = await _sweep(workers, hub, watcher, scale, kills)
            found.wall_s = (await watcher.look()).at_s
            found.cpu_s = cpu_seconds(hub.pid) - cpu
            after = LeakWatcher(hub.pid, client)
            found.after = after.seen
            await after.look()
            short = replace(scale, tasks=scale.short, at_once=min(scale.short, 5), calls=3, kills=0)
            found.short = await _sweep(workers, hub, after, short, [])
            await after.look()
        hub.close()
        found.left_behind = hub.left_behind
    found.executed = Counter((folder / "ledger").read_text().split())
    return found


async def _sweep(
    workers: list[Worker], hub: ServedHub, watcher: LeakWatcher, scale: SweepScale, kills: list[float]
) -> list[Json]:
    """Run both at the same time and watch the hub. Return the counts of each."""
    tallies: list[Json] = []

    async def ask(worker: Worker, run_name: str) -> None:
        request = {
            "address": hub.address,
            "run": run_name,
            "tasks": scale.tasks,
            "at_once": scale.at_once,
            "calls": scale.calls,
            "seed": scale.calls,
            "pace": asdict(scale.pace),
        }
        tallies.append(await anyio.to_thread.run_sync(lambda: worker.ask(request, within=_ASK_S)))

    async with anyio.create_task_group() as watching:
        watching.start_soon(watcher.watch, kills)
        async with anyio.create_task_group() as runs:
            for worker, run_name in zip(workers, RUNS, strict=True):
                runs.start_soon(ask, worker, run_name)
        watching.cancel_scope.cancel()
    return tallies


# --- what it comes to -------------------------------------------------------------------------------------------------


def _calls_table(scale: SweepScale, found: SweepResults) -> Table:
    made = found.total("made")
    row = {
        "made": made,
        "answered": found.total("answered"),
        "lost": found.total("lost"),
        "wrong": found.total("wrong"),
        "kills": found.watch.kills,
        "repeats": found.total("repeats"),
        "retries": found.after.statistics["retries"],
        "twice": sum(found.executed.values()) - len(found.executed),
        "rate": sum(_number(tally["made"]) for tally in found.tallies) / found.wall_s,
        "p50": median([tally["milliseconds"]["p50"] for tally in found.tallies]),
        "p99": max(tally["milliseconds"]["p99"] for tally in found.tallies),
    }
    columns = [
        Column("made", "calls"),
        Column("answered", "answered"),
        Column("lost", "lost"),
        Column("wrong", "wrong answers"),
        Column("kills", "servers killed"),
        Column("repeats", "repeated by agents"),
        Column("retries", "repeated by the hub"),
        Column("twice", "executed twice"),
        Column("rate", "calls/s", 0),
        Column("p50", "p50 ms", 1),
        Column("p99", "p99 ms", 1),
    ]
    title = f"2 runs x {scale.tasks} tasks x {scale.calls} calls, then 2 x {scale.short} tasks x 3 calls"
    return Table(title, columns, [row])


def _hub_table(found: SweepResults) -> Table:
    last, end = found.watch.samples[-1], found.after.samples[-1]
    lags = [sample.health_ms for sample in found.watch.settled]
    row = {
        "cpu_us": found.cpu_s / max(1, last.calls) * 1e6,
        "cpu_percent": found.cpu_s / found.wall_s * 100,
        "health_p50": median(lags),
        "health_p99": percentile(lags, 0.99),
        "deaths": found.after.statistics["deaths"],
        "starts": found.after.statistics["starts"],
        "tasks": end.tasks,
        "sessions": _own_sessions(found),
        "left": found.left_behind,
    }
    columns = [
        Column("cpu_us", "hub CPU µs/call"),
        Column("cpu_percent", "% of a core", 1),
        Column("health_p50", "/healthz p50 ms", 1),
        Column("health_p99", "/healthz p99 ms", 1),
        Column("starts", "sessions started"),
        Column("deaths", "deaths"),
        Column("tasks", "tasks left"),
        Column("sessions", "sessions of tasks left"),
        Column("left", "processes left"),
    ]
    return Table("The hub", columns, [row])


def _own_sessions(found: SweepResults) -> int:
    return sum(len(task["slots"]) for task in found.after.statistics["tasks"])


def _growth_table(found: SweepResults) -> Table:
    settled, after = found.watch.settled, found.after.samples
    tasks = sum(_number(tally["made"]) for tally in found.short) / 3
    rows = [
        _growth_row("while the tasks work", settled[0].rss_kib, settled[-1].rss_kib, found.watch.fd_growth())
        | {"slope": found.watch.slope(), "percent": _slope_percent(found)},
        _growth_row("while short tasks come and go", after[0].rss_kib, after[-1].rss_kib, after[-1].fds - after[0].fds)
        | {"per_task": (after[-1].rss_kib - after[0].rss_kib) / max(1, tasks)},
    ]
    columns = [
        Column("what", "growth"),
        Column("first", "hub RSS MiB, first", 1),
        Column("last", "last", 1),
        Column("slope", "KiB per 1,000 calls", 1),
        Column("percent", "% per 10,000 calls", 2),
        Column("per_task", "KiB per task", 1),
        Column("fds", "fds", 0),
    ]
    return Table("What stays behind in the hub's process", columns, rows)


def _growth_row(name: str, first_kib: float, last_kib: float, fds: float) -> Json:
    return {"what": name, "first": first_kib / _MIB, "last": last_kib / _MIB, "fds": fds}


def _slope_percent(found: SweepResults) -> float:
    """Growth per 10,000 calls, in percent of the hub's size when it had settled."""
    return found.watch.slope() * 10 / found.watch.settled[0].rss_kib * 100


def _targets(found: SweepResults) -> list[Target]:
    settled = found.watch.settled
    enough = settled[-1].calls - settled[0].calls >= _ENOUGH_CALLS
    return [
        Target("calls lost", found.total("lost"), 0),
        Target("wrong answers", found.total("wrong"), 0),
        Target("growth of the hub per 10,000 calls", _slope_percent(found) if enough else None, SLOPE_PERCENT, "%"),
        Target("growth in descriptors", found.watch.fd_growth(), _FD_NOISE),
        Target("descriptors left by short tasks", found.after.samples[-1].fds - found.after.samples[0].fds, _FD_NOISE),
        Target("tasks and their sessions left", found.after.samples[-1].tasks + _own_sessions(found), 0),
        Target("processes left behind", found.left_behind, 0),
    ]


def _notes(scale: SweepScale, found: SweepResults) -> list[str]:
    pace = scale.pace
    hours = found.wall_s * pace.compressed / 3600
    mix = ", ".join(f"{name} {share:.0%}" for name, share in MIX.items())
    return [
        f"Times are 1:{pace.compressed:g}; {found.wall_s:.0f} s stand for {hours:.1f} hours. Log-normal pauses (median "
        f"{pace.think_s:g} s) and, of the shared server, tool times (median {pace.tool_s:g} s), sigma 1 each. "
        f"Servers: {mix}. All tools are read-only, so that a call lost with a server that was killed is repeated: by "
        "the hub, or by the agent where the server was one that keeps state.",
        "Growth is a line of least squares through samples once a second, from the first quarter of the calls on and "
        "while all tasks are open. "
        "/healthz is asked with each sample: how long it takes is how long the hub's loop was busy with others. The "
        "samples are in the hub's CPU.",
    ]


BENCHMARK = Benchmark(
    "sweep",
    QUESTIONS["sweep"],
    run,
    full=SweepScale(tasks=60, at_once=60, calls=130, pace=Pace(compressed=180), kills=12, short=100),
    quick=SweepScale(tasks=20, at_once=20, calls=60, pace=Pace(compressed=120), kills=4, short=20),
)
