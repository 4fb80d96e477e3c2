"""One load on an overloaded service through a hub: its callers, what the hub lets through, and the result.

The service is `slow_service`, a hundredfold faster, and the agents are those of `agents`, in a process for each run.
Both variants are a served hub, so that they differ only in what it lets through: everything (`no backpressure`),
or what an adaptive limit finds good.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.hub_process import ServedHub
from benchmarks.common.measure import percentile
from benchmarks.common.result import Json
from benchmarks.common.subprocess_worker import Worker
from benchmarks.overload.agents import SERVER, Habits
from benchmarks.overload.slow_service import ALONE_S, AT_ONCE, fitted_k

RUNS = ("a", "b")
OPEN, OURS = "no backpressure", "toolhub, adaptive"
VARIANTS = (OPEN, OURS)
SCALE = 100
ENOUGH = 100_000
_SCRIPT = Path(__file__).with_name("slow_service.py")
# Beyond the window: opening and closing the tasks.
_ASK_S = 60.0

WorkersByVariant = Mapping[str, Sequence[Worker]]


@dataclass(frozen=True)
class OverloadCase:
    """One service and its callers. tasks: of each run."""

    name: str
    tasks: tuple[int, int]
    habits: Habits = Habits(work_s=ALONE_S / SCALE)
    p: float = 2.0
    stops_abandoned: bool = False


@dataclass(frozen=True)
class LoadResult:
    """The windows of one variant. window_s: of all together. tallies: per window and run, as `agents.RunOutcomes`."""

    window_s: float
    tallies: Sequence[Json]

    def total(self, key: str) -> int:
        return sum(tally[key] for tally in self.tallies)

    def answered(self, run: int) -> int:
        return sum(self.tallies[run]["answered"])

    @property
    def goodput(self) -> float:
        """Answers in time, per second."""
        return len(self.latencies) / self.window_s

    @property
    def latencies(self) -> list[float]:
        return [seconds for tally in self.tallies for seconds in tally["latencies_s"]]

    def latency(self, q: float) -> float | None:
        """The q-quantile (0..1) of answered calls in seconds; None when none was answered."""
        return percentile(self.latencies, q) if self.latencies else None

    @property
    def refused(self) -> float | None:
        """The share of ended calls that were given up after refusals; None when none ended."""
        ended = len(self.latencies) + sum(map(self.total, ("late", "expired", "given_up")))
        return self.total("given_up") / ended if ended else None

    @property
    def fairness(self) -> float:
        """Jain's index over the tasks of both runs."""
        return jain([count for tally in self.tallies for count in tally["answered"]])


def jain(counts: Sequence[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 when all have the same, 1/n when one has everything; 0 when none has any."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def server(case: OverloadCase, **fields: object) -> Json:
    """The service's entry in a hub's config."""
    curve = ["--k", str(fitted_k(case.p)), "--p", str(case.p)]
    args = ["-S", str(_SCRIPT), *curve, *["--stops-abandoned"] * case.stops_abandoned]
    return {"command": sys.executable, "args": args, "share": "hub", "call_timeout_s": 600, **fields}


def open_hub(variant: str, case: OverloadCase) -> ServedHub:
    """Open a hub. Its config does not depend on the number of tasks."""
    if variant == OPEN:
        servers = {SERVER: server(case, concurrency=ENOUGH)}
        return ServedHub(servers, concurrency=ENOUGH, task_concurrency=ENOUGH, queue=ENOUGH)
    return ServedHub({SERVER: server(case, adaptive=True, concurrency=AT_ONCE)})


@contextmanager
def open_workers() -> Iterator[WorkersByVariant]:
    """Open a process for each run of each variant."""
    with ExitStack() as stack:
        yield {
            variant: [stack.enter_context(Worker("benchmarks.overload.agents:open_agents", {})) for _ in RUNS]
            for variant in VARIANTS
        }


@contextmanager
def open_hubs(case: OverloadCase) -> Iterator[Mapping[str, ServedHub]]:
    """Open a new hub with a new service for each variant."""
    with ExitStack() as stack:
        yield {variant: stack.enter_context(open_hub(variant, case)) for variant in VARIANTS}


def in_turns(
    workers: WorkersByVariant, hubs: Mapping[str, ServedHub], case: OverloadCase, window_s: float, seed: int = 0
) -> dict[str, LoadResult]:
    """Measure one variant after the other. seed: of the agents' habits, the same for both."""
    return {
        variant: LoadResult(window_s, ask(_requests(workers[variant], hubs[variant], case, window_s, seed)))
        for variant in VARIANTS
    }


def pooled(rounds: Sequence[Mapping[str, LoadResult]]) -> dict[str, LoadResult]:
    """The windows of all rounds as one."""
    return {
        variant: LoadResult(
            sum(each[variant].window_s for each in rounds),
            [tally for each in rounds for tally in each[variant].tallies],
        )
        for variant in VARIANTS
    }


def side_by_side(
    workers: WorkersByVariant, hubs: Mapping[str, ServedHub], case: OverloadCase, window_s: float
) -> dict[str, LoadResult]:
    """Measure both variants at once. The service sleeps instead of working, so they barely disturb each other."""
    tallies = ask(
        [request for variant in VARIANTS for request in _requests(workers[variant], hubs[variant], case, window_s)]
    )
    each = len(RUNS)
    return {
        variant: LoadResult(window_s, tallies[place * each : (place + 1) * each])
        for place, variant in enumerate(VARIANTS)
    }


def _requests(
    workers: Sequence[Worker], hub: ServedHub, case: OverloadCase, window_s: float, seed: int = 0
) -> list[tuple[Worker, Json]]:
    about = {"address": hub.address, "window_s": window_s, "seed": seed, "habits": asdict(case.habits)}
    return [
        (worker, {**about, "run": name, "tasks": tasks})
        for worker, name, tasks in zip(workers, RUNS, case.tasks, strict=True)
    ]


def ask(requests: Sequence[tuple[Worker, Json]]) -> list[Json]:
    """Send each worker its request, all at the same time."""
    with ThreadPoolExecutor(len(requests)) as threads:
        asked = [
            threads.submit(worker.ask, request, within=request["window_s"] + _ASK_S) for worker, request in requests
        ]
        return [answer.result() for answer in asked]
