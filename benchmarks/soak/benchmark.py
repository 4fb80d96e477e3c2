"""Does a hub survive everything at once? See `benchmarks/soak/__init__.py`.

    toolhub bench soak [--calls N] [--minutes M] [--seed S]

It ends after so many calls or minutes, whichever is first. Ctrl-C ends it in order and keeps its state. The same
command then continues with the next faults.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import psutil

from benchmarks.common.machine import git_revision
from benchmarks.common.result import Benchmark, Json, Outcome
from benchmarks.common.subprocess_worker import Worker
from benchmarks.questions import QUESTIONS
from benchmarks.soak import leftovers, report
from benchmarks.soak.faults import ENDS_THE_HUB, KINDS, FaultTargets, deck, strike
from benchmarks.soak.hub import SECTIONS, SoakHub, servers
from benchmarks.soak.ledger import CallCounts, Ledger
from toolhub.config.models import HubSettings

_SOCKET_PROCESSES = 2
# A share of the tasks: a call over /mcp costs the client and the hub several times as much.
_MCP_SHARE = 1 / 30
_SAMPLE_S, _PROGRESS_S, _LOOK_S = 2.0, 5.0, 0.25
_FIRST_FAULT_S = 2.0
# The hub is killed and restarted only in this first part of the run, so that one life is long enough to show growth.
_HUB_ENDS_BEFORE = 0.3
_STOP_S = 120.0


@dataclass(frozen=True)
class SoakScale:
    """It ends after `minutes`, or after `calls` and `faults` (those that were recovered from).

    tasks: open at once, with `calls_each` calls; others follow. state: the file that a later run goes on from.
    """

    calls: int
    minutes: float
    faults: int = 0
    seed: int = 1
    tasks: int = 120
    calls_each: int = 400
    state: Path | None = None
    kinds: frozenset[str] = frozenset(KINDS)
    pause_s: tuple[float, float] = (0.5, 4.0)
    """Between the end of one fault and the next. Some faults occur while the hub recovers from the last one."""


@dataclass
class SoakSample:
    """One look at the hub. life: how often it has started. calls: since that start."""

    at_s: float
    life: int
    calls: int
    rss_bytes: int
    descriptors: int


@dataclass
class SoakFindings:
    """The results of a run. A later run may continue from them."""

    seed: int
    revisions: list[str] = field(default_factory=list)
    """One for each part."""
    counts: CallCounts = field(default_factory=CallCounts)
    faults: list[Json] = field(default_factory=list)
    samples: list[SoakSample] = field(default_factory=list)
    inventories: dict[str, Json] = field(default_factory=dict)
    seconds: float = 0.0
    orphans: int = 0
    lives: int = 0
    parts: int = 0
    dealt: int = 0
    """How many faults the seed has chosen so far, with those that found no target."""

    def to_json(self) -> Json:
        samples = [asdict(sample) for sample in self.samples]
        return {**vars(self), "counts": self.counts.to_json(), "samples": samples}

    @classmethod
    def of_json(cls, data: Json) -> SoakFindings:
        samples = [SoakSample(**sample) for sample in data["samples"]]
        return cls(**{**data, "counts": CallCounts.of_json(data["counts"]), "samples": samples})


def run(scale: SoakScale) -> Outcome:
    found = _earlier(scale) or SoakFindings(scale.seed)
    found.revisions.append(git_revision()["revision"])
    leftovers.sweep()
    # A short name: Chromium makes a socket some folders below it, whose path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix=leftovers.FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        is_interrupted = anyio.run(_Part(scale, found, Path(folder)).run)
    _keep(scale, found)
    return report.outcome(scale, found, is_interrupted=is_interrupted)


# --- going on ---------------------------------------------------------------------------------------------------------


def state_file() -> Path:
    """Where a run that is not finished is kept."""
    return HubSettings().state_path / "soak.json"


def _earlier(scale: SoakScale) -> SoakFindings | None:
    if scale.state is None or not scale.state.is_file():
        return None
    earlier = SoakFindings.of_json(json.loads(scale.state.read_text()))
    if earlier.seed != scale.seed:
        _say(f"{scale.state} has a run of another seed; a new one begins.")
        return None
    told = f"{earlier.counts.calls:,} calls and {len(earlier.faults)} faults"
    _say(f"Goes on after {told}; delete {scale.state} to begin anew.")
    return earlier


def _keep(scale: SoakScale, found: SoakFindings) -> None:
    if scale.state is None:
        return
    if found.counts.calls >= scale.calls:
        scale.state.unlink(missing_ok=True)
        return
    scale.state.parent.mkdir(parents=True, exist_ok=True)
    scale.state.write_text(json.dumps(found.to_json()))


# --- one part of a run ------------------------------------------------------------------------------------------------


class _Part:
    """One part of a run: from the start of a hub to its end, or to Ctrl-C."""

    def __init__(self, scale: SoakScale, found: SoakFindings, folder: Path) -> None:
        self._scale = scale
        self._found = found
        self._before = found.counts
        self._ledger = Ledger(folder, _SOCKET_PROCESSES + 1)
        self._folder = folder
        self._now = CallCounts()
        self._began = time.monotonic()
        self._life_began_at = 0
        self._is_interrupted = False

    async def run(self) -> bool:
        """Return whether Ctrl-C ended it."""
        with ExitStack() as stack:
            upstream = stack.enter_context(
                Worker("benchmarks.soak.upstream:open_upstream", {"ledger": str(self._ledger.executed_path)})
            )
            port = upstream.ask({"how": ""})["port"]
            hub = stack.enter_context(SoakHub(self._folder, servers(self._ledger.executed_path, port), **SECTIONS))
            self._found.inventories.setdefault("before", hub.inventory().to_json())
            load = self._start_load(hub, stack)
            source = random.Random(f"{self._scale.seed}-{self._found.parts}")
            targets = FaultTargets(hub, upstream, source, load, page=f"http://127.0.0.1:{port}/")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen)
                tasks.start_soon(self._strike, targets)
                tasks.start_soon(self._sample, hub)
                tasks.start_soon(self._show_progress)
                await self._wait_end()
                tasks.cancel_scope.cancel()
            hub.continue_stopped()
            await anyio.to_thread.run_sync(_stop_all, load)
            if hub.is_up:
                self._found.inventories["loaded"] = hub.inventory().to_json()
            await anyio.to_thread.run_sync(hub.close)
            self._finish(hub)
        return self._is_interrupted

    def _start_load(self, hub: SoakHub, stack: ExitStack) -> list[Worker]:
        over_mcp = max(1, round(self._scale.tasks * _MCP_SHARE))
        over_socket = self._scale.tasks - over_mcp
        each = -(-over_socket // _SOCKET_PROCESSES)
        plan = [("socket", f"unix://{hub.socket}", each)] * _SOCKET_PROCESSES + [("mcp", hub.mcp_url, over_mcp)]
        load = []
        for number, (transport, address, tasks) in enumerate(plan):
            arguments = {
                "address": address,
                "transport": transport,
                "folder": str(self._folder),
                "number": number,
                "seed": f"{self._scale.seed}-{self._found.parts}",
                "tasks": tasks,
                "calls": self._scale.calls_each,
                "sandboxes": number == 0,
            }
            load.append(stack.enter_context(Worker("benchmarks.soak.load:open_load", arguments)))
        for worker in load:
            worker.wait_ready()
        return load

    @property
    def _calls(self) -> int:
        return self._before.calls + self._now.calls

    @property
    def _seconds(self) -> float:
        return self._found.seconds + time.monotonic() - self._began

    @property
    def _progress(self) -> float:
        """How much of the run is done, by calls or by time."""
        return max(self._calls / self._scale.calls, self._seconds / (60 * self._scale.minutes))

    async def _wait_end(self) -> None:
        while not self._is_interrupted and self._seconds < 60 * self._scale.minutes:
            recovered = sum(fault["recovered_ms"] is not None for fault in self._found.faults)
            if self._calls >= self._scale.calls and recovered >= self._scale.faults:
                return
            await anyio.sleep(_LOOK_S)
            self._now = self._ledger.read()

    async def _listen(self) -> None:
        """The first Ctrl-C ends the run in order; a second one at once."""
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                _say("Ends; what there is will be kept.")
                self._is_interrupted = True
                return

    async def _strike(self, targets: FaultTargets) -> None:
        if not self._scale.kinds:
            return
        await anyio.sleep(_FIRST_FAULT_S)
        for kind in deck(self._scale.seed, start=self._found.dealt):
            self._found.dealt += 1
            if kind not in self._scale.kinds:
                continue
            if kind in ENDS_THE_HUB and self._progress > _HUB_ENDS_BEFORE:
                self._leave_out(kind, "the rest is one life of the hub")
                continue
            errors = Counter(self._now.errors)
            entry: Json = {"at_s": round(self._seconds, 2), "calls": self._calls}
            entry |= await strike(targets, kind)
            self._now = self._ledger.read()
            entry["errors"] = dict(self._now.errors - errors)
            self._found.faults.append(entry)
            if kind in ENDS_THE_HUB:
                self._life_began_at = self._now.calls
            await anyio.sleep(targets.source.uniform(*self._scale.pause_s))

    def _leave_out(self, kind: str, why: str) -> None:
        self._found.faults.append({"kind": kind, "what": "", "recovered_ms": None, "problem": f"left out: {why}"})

    async def _sample(self, hub: SoakHub) -> None:
        before = 0
        while True:
            life = self._found.lives + hub.starts
            if life != before:
                before, began_at = life, self._now.calls
            try:
                process = psutil.Process(hub.pid)
                size, held = process.memory_info().rss, process.num_fds()
            except psutil.Error:  # it is being restarted
                size = held = 0
            if size:
                calls = self._now.calls - began_at
                self._found.samples.append(SoakSample(round(self._seconds, 2), life, calls, size, held))
            await anyio.sleep(_SAMPLE_S)

    async def _show_progress(self) -> None:
        last, at = self._now.calls, time.monotonic()
        while True:
            await anyio.sleep(_PROGRESS_S)
            now = time.monotonic()
            rate, last, at = (self._now.calls - last) / (now - at), self._now.calls, now
            _say(self._line(rate))

    def _line(self, rate: float) -> str:
        struck = [fault for fault in self._found.faults if not fault["problem"].startswith("left out")]
        bad = sum(bool(fault["problem"]) for fault in struck)
        left_s = 60 * self._scale.minutes - self._seconds
        if rate:
            left_s = min(left_s, (self._scale.calls - self._calls) / rate)
        parts = [
            f"{self._calls:,} of {self._scale.calls:,} calls",
            f"{rate:,.0f}/s",
            f"{sum(self._now.errors.values()):,} errors",
            f"{len(struck)} faults{f' ({bad} NOT RECOVERED)' if bad else ''}",
            f"at most {max(0, left_s) / 60:.1f} min left",
        ]
        return ", ".join(parts)

    def _finish(self, hub: SoakHub) -> None:
        found = self._found
        counts = self._ledger.close()
        counts.add(self._before)
        found.counts = counts
        found.inventories["after"] = hub.inventory().to_json()
        found.seconds = self._seconds
        found.orphans += hub.orphans
        found.lives += hub.starts
        found.parts += 1


def _stop_all(load: list[Worker]) -> None:
    with anyio.from_thread.start_blocking_portal() as portal:
        for stopped in [portal.start_task_soon(_stop, worker) for worker in load]:
            stopped.result()


async def _stop(worker: Worker) -> None:
    await anyio.to_thread.run_sync(lambda: worker.ask({}, within=_STOP_S))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


BENCHMARK = Benchmark(
    "soak",
    QUESTIONS["soak"],
    run,
    full=SoakScale(calls=1_000_000, minutes=60, state=state_file()),
    quick=SoakScale(calls=20_000, minutes=1 / 3, tasks=40),
    in_all=SoakScale(calls=100_000, minutes=1),
    options=("calls", "minutes", "seed"),
)
