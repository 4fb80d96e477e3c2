"""What does a crash cost? SIGKILL of a server under callers in flight, many times.

Each round: callers write their key into the server's ledger and wait; the server is killed; the first caller that is
told makes the next call at once. Beside it, in the same round, plain starts of the same server.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import psutil

from benchmarks.common.callers import check, sdk_session
from benchmarks.common.measure import median, percentile, spread, tree
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, hub_config, ratio
from benchmarks.common.server_commands import ServerCommand, fixture_echo, sdk_echo
from benchmarks.questions import QUESTIONS
from toolhub import Hub, HubTask, SessionLost

# Far longer than a round, so that every error of a caller comes from the kill.
_LEDGER_DELAY_S = 120
# Every wait of a round; a server of the SDK starts in half a second on a quiet machine.
_ROUND_S = 60.0
# Each death counts as the first one, so that no backoff grows with the rounds.
_ISOLATED_DEATHS = {"max_deaths": 1_000_000, "backoff_s": 0, "max_backoff_s": 0}
_TITLES = {"echo": "A server on the standard library alone", "sdk": "A server written with the SDK"}
_SHORT = {"echo": "lean server", "sdk": "SDK server"}


@dataclass(frozen=True)
class RecoverScale:
    """rounds: of the lean server. sdk_rounds: of the one written with the SDK, which starts slowly; 0 leaves it out."""

    rounds: int
    sdk_rounds: int
    callers: int = 32


@dataclass
class RecoveryTimes:
    """Milliseconds of every round, from the kill on (starts: from the call on), and what went wrong."""

    all_told: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    hub_start: list[float] = field(default_factory=list)
    sdk_start: list[float] = field(default_factory=list)
    untold: int = 0
    next_lost: int = 0
    duplicates: int = 0
    orphans: int = 0


def run(scale: RecoverScale) -> Outcome:
    outcome = Outcome(notes=[
        "Times are from SIGKILL on. The next call is made by the first caller that is told. A plain start is the "
        "SDK's: process, handshake, first call. Restart pauses are off, so that every death counts as an isolated one.",
    ])  # fmt: skip
    for server, kills in ((fixture_echo(), scale.rounds), (sdk_echo(), scale.sdk_rounds)):
        if not kills:
            continue
        name, rounds = server.name, anyio.run(_measure, server, kills, scale.callers)
        title = f"{_TITLES[name]}: {kills} kills, {scale.callers} callers in flight each"
        outcome.tables.append(_table(title, rounds))
        outcome.targets += _targets(_SHORT[name], rounds)
        times = ("all_told", "served", "hub_start", "sdk_start")
        outcome.raw[name] = {key: {**spread(getattr(rounds, key)), "ms": getattr(rounds, key)} for key in times}
    return outcome


async def _measure(server: ServerCommand, kills: int, callers: int) -> RecoveryTimes:
    rounds = RecoveryTimes()
    before = {process.pid for process in tree(os.getpid())}
    with tempfile.TemporaryDirectory() as directory:
        ledger = Path(directory, "ledger")
        ledger.touch()
        env = {"LEDGER": str(ledger), "LEDGER_DELAY": str(_LEDGER_DELAY_S)}
        ours = replace(server, env=env)
        entry = ours.config(restart=_ISOLATED_DEATHS, concurrency=callers)
        async with Hub(hub_config({"s": entry}, Path(directory))) as hub, hub.task("kills") as task:
            await _echo(task, ours)
            for number in range(kills):
                with anyio.fail_after(_ROUND_S):
                    await _kill_once(task, ours, ledger, number, callers, rounds)
                    await _start_plainly(hub, ours, rounds)
        counted = Counter(ledger.read_text().split())
    rounds.duplicates = sum(count - 1 for count in counted.values())
    left = [process for process in tree(os.getpid()) if process.pid not in before]
    rounds.orphans = len(psutil.wait_procs(left, timeout=1)[1])
    return rounds


async def _kill_once(
    task: HubTask, server: ServerCommand, ledger: Path, number: int, callers: int, rounds: RecoveryTimes
) -> None:
    told: list[float] = []
    served: list[float] = []

    async def serve_next() -> None:
        while not served:
            try:
                await _echo(task, server)
                served.append(time.perf_counter())
            except SessionLost:
                rounds.next_lost += 1

    async def wait_for_the_end(key: str) -> None:
        try:
            await task.call("s", "ledger", {"key": key})
        except SessionLost:
            told.append(time.perf_counter())
            if len(told) == 1:
                await serve_next()

    expected = len(ledger.read_text().split()) + callers
    async with anyio.create_task_group() as waiters:
        for caller in range(callers):
            waiters.start_soon(wait_for_the_end, f"{number}-{caller}")
        while len(ledger.read_text().split()) < expected:
            await anyio.sleep(0.002)
        (pid,) = (slot.pid for slot in task.statistics().slots)
        assert pid is not None
        killed = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
    rounds.untold += callers - len(told)
    rounds.all_told.append((max(told) - killed) * 1e3)
    rounds.served.append((served[0] - killed) * 1e3)


async def _start_plainly(hub: Hub, server: ServerCommand, rounds: RecoveryTimes) -> None:
    async with hub.task() as fresh:
        began = time.perf_counter()
        await _echo(fresh, server)
        rounds.hub_start.append((time.perf_counter() - began) * 1e3)
    began = time.perf_counter()
    async with sdk_session({**server.to_json(), "env": server.env}) as session:
        check((await session.call_tool(server.tool, server.arguments)).is_error)
        rounds.sdk_start.append((time.perf_counter() - began) * 1e3)


async def _echo(task: HubTask, server: ServerCommand) -> None:
    check((await task.call("s", server.tool, server.arguments)).is_error)


def _table(title: str, rounds: RecoveryTimes) -> Table:
    named = {
        "last caller told": rounds.all_told,
        "next call served": rounds.served,
        "plain start through the hub": rounds.hub_start,
        "plain start with the SDK": rounds.sdk_start,
    }
    rows = [_row(name, values, median(rounds.sdk_start)) for name, values in named.items()]
    columns = [
        Column("what", "what"),
        Column("p50_ms", "p50 ms", 1),
        Column("p99_ms", "p99 ms", 1),
        Column("max_ms", "max ms", 1),
        Column("vs_start", "p50 ÷ plain SDK start", 2),
    ]
    return Table(title, columns, rows)


def _row(name: str, values: list[float], start_ms: float) -> Json:
    return {
        "what": name,
        "p50_ms": median(values),
        "p99_ms": percentile(values, 0.99),
        "max_ms": max(values),
        "vs_start": ratio(median(values), start_ms),
    }


def _targets(name: str, rounds: RecoveryTimes) -> list[Target]:
    return [
        Target(f"{name}: next call ÷ plain start", ratio(median(rounds.served), median(rounds.sdk_start)), 1.2, "×"),
        Target(f"{name}: callers never told", rounds.untold, 0),
        Target(f"{name}: next calls lost too", rounds.next_lost, 0),
        Target(f"{name}: duplicates in the ledger", rounds.duplicates, 0),
        Target(f"{name}: orphans", rounds.orphans, 0),
    ]


BENCHMARK = Benchmark(
    "recover",
    QUESTIONS["recover"],
    run,
    full=RecoverScale(rounds=60, sdk_rounds=30),
    quick=RecoverScale(rounds=10, sdk_rounds=10),
)
