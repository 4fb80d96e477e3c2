"""What does too much cost? Two runs of 60 tasks ask one service that gets slower with everybody who asks it.

The service is that of `crowded`, a hundredfold faster: 0.33 s alone, 6.31 s with 120 at once. The agents are those of
`agents`, in a process for each run, and the hub is one of its own. Both contestants are a hub, so that all they differ
in is what the hub lets through: everything (`no backpressure`), or what an adaptive limit finds good.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.agents import SERVER, Habits
from benchmarks.crew import Worker
from benchmarks.crowded import ALONE_S, fitted_k
from benchmarks.measure import interleaved, median, percentile
from benchmarks.result import Column, Json, Outcome, Question, Table, Target, ratio
from benchmarks.served import ServedHub

RUNS = ("a", "b")
OPEN, OURS = "no backpressure", "toolhub, adaptive"
SCALE = 100
_SCRIPT = Path(__file__).with_name("crowded.py")
_ENOUGH = 100_000
# Beyond the window: opening and closing the tasks.
_ASK_S = 60.0
# A hand-set limit well below the best of the curve, so that who waits for one place waits a fraction of a call.
_BINDING = 12
_QUIET = Habits(think_s=0.2, deadline_s=60.0, deadline_sigma=0.0)


@dataclass(frozen=True)
class Case:
    """One service and those who ask it. tasks: of each run."""

    name: str
    tasks: tuple[int, int]
    habits: Habits = Habits(work_s=ALONE_S / SCALE)
    p: float = 2.0
    stops_abandoned: bool = False


@dataclass(frozen=True)
class Scale:
    """rounds of window_s each for the main case, then one for each of the others, and one for quiet and noisy."""

    tasks: int
    rounds: int
    window_s: float
    others_s: float
    quiet_s: float
    burst: int
    variants: bool = True


@dataclass
class Found:
    """All rounds of one contestant in one case."""

    window_s: float
    tallies: list[list[Json]] = field(default_factory=list)

    def total(self, key: str) -> int:
        return sum(tally[key] for round_ in self.tallies for tally in round_)

    def answered(self, run: int) -> int:
        return sum(sum(round_[run]["answered"]) for round_ in self.tallies)

    @property
    def goodput(self) -> float:
        return sum(map(self.answered, range(len(self.tallies[0])))) / (self.window_s * len(self.tallies))

    @property
    def latencies(self) -> list[float]:
        return [seconds for round_ in self.tallies for tally in round_ for seconds in tally["latencies_s"]]

    @property
    def fairness(self) -> float:
        """Jain's index over the tasks of both runs, the mean of the rounds."""
        each = [jain([count for tally in round_ for count in tally["answered"]]) for round_ in self.tallies]
        return sum(each) / len(each)


def jain(counts: Sequence[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 when all have the same, 1/n when one has everything; 0 when nobody has anything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def server(case: Case, **fields: object) -> Json:
    """The service's entry in a hub's config."""
    curve = ["--k", str(fitted_k(case.p)), "--p", str(case.p)]
    args = ["-S", str(_SCRIPT), *curve, *["--stops-abandoned"] * case.stops_abandoned]
    return {"command": sys.executable, "args": args, "share": "hub", "call_timeout_s": 600, **fields}


def open_hub(way: str, case: Case) -> ServedHub:
    if way == OPEN:
        limits = {"concurrency": _ENOUGH, "task_concurrency": _ENOUGH, "queue": _ENOUGH}
        return ServedHub({SERVER: server(case, concurrency=_ENOUGH)}, **limits)
    return ServedHub({SERVER: server(case, adaptive=True, concurrency=sum(case.tasks))})


def run(scale: Scale) -> Outcome:
    outcome = Outcome(notes=[*_NOTES])
    main = Case(f"2 runs x {scale.tasks} tasks", (scale.tasks, scale.tasks))
    with ExitStack() as stack:
        crew = [stack.enter_context(Worker("benchmarks.agents:open_agents", {})) for _ in RUNS]
        _overload(crew, scale, main, outcome)
        _runs(crew, scale, main, outcome)
        if scale.variants:
            _variants(crew, scale, main, outcome)
        _quiet(crew, scale, main, outcome)
    return outcome


# --- everybody at once ----------------------------------------------------------------------------------------------


def _contest(crew: list[Worker], case: Case, rounds: int, window_s: float) -> dict[str, Found]:
    """Both contestants in turns, each time with a new hub and a new service. Nothing is warm, so nothing is discarded.

    Limits are found, or not, within the window: it begins with everybody asking, as a sweep does.
    """
    found = {way: Found(window_s) for way in (OPEN, OURS)}
    for number, way in interleaved((OPEN, OURS), rounds - 1):
        requests = [
            {"run": name, "tasks": tasks, "window_s": window_s, "seed": number, "habits": asdict(case.habits)}
            for name, tasks in zip(RUNS, case.tasks, strict=True)
        ]
        with open_hub(way, case) as hub:
            found[way].tallies.append(_ask(crew, hub, requests))
    return found


def _ask(crew: list[Worker], hub: ServedHub, requests: list[Json]) -> list[Json]:
    """All at the same time."""
    with ThreadPoolExecutor() as threads:
        asked = [
            threads.submit(worker.ask, {"address": hub.address, **request}, within=request["window_s"] + _ASK_S)
            for worker, request in zip(crew, requests, strict=True)
        ]
        return [answer.result() for answer in asked]


def _overload(crew: list[Worker], scale: Scale, case: Case, outcome: Outcome) -> None:
    found = _contest(crew, case, scale.rounds, scale.window_s)
    title = f"{case.name}, {scale.rounds} windows of {scale.window_s:g} s, everything 1:{SCALE}"
    outcome.tables.append(Table(title, _COLUMNS, [_row(way, each) for way, each in found.items()]))
    outcome.raw["overload"] = {way: each.tallies for way, each in found.items()}
    theirs, ours = found[OPEN], found[OURS]
    outcome.targets += [
        Target("goodput ÷ no backpressure", ratio(ours.goodput, theirs.goodput), 2, "×", at_most=False),
        Target(
            "p99 of answered calls ÷ no backpressure",
            ratio(percentile(ours.latencies, 0.99), percentile(theirs.latencies, 0.99)),
            0.3,
            "×",
        ),
        Target("Jain's index over all tasks", ours.fairness, 0.95, at_most=False),
    ]


def _row(name: str, found: Found) -> Json:
    latencies = found.latencies or [float("nan")]
    return {
        "way": name,
        "goodput": found.goodput,
        "p50_s": median(latencies) if found.latencies else None,
        "p99_s": percentile(latencies, 0.99) if found.latencies else None,
        "jain": found.fairness,
        **{key: found.total(key) for key in ("late", "expired", "refusals", "given_up")},
    }


def _runs(crew: list[Worker], scale: Scale, main: Case, outcome: Outcome) -> None:
    """One run with three times the tasks of the other."""
    many = scale.tasks * 3 // 2
    case = replace(main, name=f"{many} tasks beside {2 * scale.tasks - many}", tasks=(many, 2 * scale.tasks - many))
    found = _contest(crew, case, 1, scale.others_s)
    rows = []
    for way, each in found.items():
        runs = [each.answered(number) for number in range(len(RUNS))]
        rows.append({"way": way, "large": runs[0], "small": runs[1], "jain": jain(runs)})
    outcome.tables.append(Table(f"Shares of two runs: {case.name}, one window of {scale.others_s:g} s", _RUNS, rows))
    outcome.raw["runs"] = {way: each.tallies for way, each in found.items()}


def _variants(crew: list[Worker], scale: Scale, main: Case, outcome: Outcome) -> None:
    """What is open in the model, each the other way round."""
    cases = [
        replace(main, name="calls have 6 s, not 10", habits=replace(main.habits, deadline_s=6.0)),
        replace(main, name="nobody is in another's way (p = 1)", p=1.0),
        replace(main, name="stops what nobody waits for", stops_abandoned=True),
    ]
    rows = []
    for case in cases:
        found = _contest(crew, case, 1, scale.others_s)
        rows += [_row(f"{case.name}: {way}", each) for way, each in found.items()]
        outcome.raw[case.name] = {way: each.tallies for way, each in found.items()}
    outcome.tables.append(Table(f"Other services, one window of {scale.others_s:g} s each", _COLUMNS, rows))


# --- one who asks seldom beside one who asks for everything ---------------------------------------------------------


def _quiet(crew: list[Worker], scale: Scale, main: Case, outcome: Outcome) -> None:
    """Same run, two tasks. The quiet one asks for the same in all three rows: only its company differs."""
    bound = server(main, hub_concurrency=_BINDING, concurrency=_BINDING)
    rows = []
    for name, hub, burst in (
        ("alone", ServedHub({SERVER: bound}), 0),
        (f"beside a burst of {scale.burst:,} calls, limit {_BINDING}", ServedHub({SERVER: bound}), scale.burst),
        (f"beside a burst of {scale.burst:,} calls, no backpressure", open_hub(OPEN, main), scale.burst),
    ):
        about: Json = {"run": "a", "tasks": 1, "window_s": scale.quiet_s, "seed": 0, "habits": asdict(_QUIET)}
        requests = [about, {**about, "run": "a", "seed": 1, "burst": burst}]
        with hub:
            quiet, noisy = _ask(crew, hub, requests)
        rows.append(_quiet_row(name, quiet, noisy))
        outcome.raw[f"quiet {name}"] = quiet
    outcome.tables.append(Table(f"A quiet task, {scale.quiet_s:g} s", _QUIET_COLUMNS, rows))
    p99 = ratio(rows[1]["p99_s"], rows[0]["p99_s"])
    outcome.targets.append(Target("quiet task's p99 beside a burst ÷ alone", p99, 2, "×"))


def _quiet_row(name: str, quiet: Json, noisy: Json) -> Json:
    latencies = quiet["latencies_s"]
    return {
        "way": name,
        "answered": sum(quiet["answered"]),
        "p50_s": median(latencies) if latencies else None,
        "p99_s": percentile(latencies, 0.99) if latencies else None,
        "noisy": sum(noisy["answered"]),
    }


_TIMES = [Column("p50_s", "p50 s", 2), Column("p99_s", "p99 s", 2)]
_COLUMNS = [
    Column("way", "way"),
    Column("goodput", "answered in time/s", 1),
    *_TIMES,
    Column("jain", "Jain's index", 3),
    Column("late", "sent, too late"),
    Column("expired", "never sent, too late"),
    Column("refusals", "refusals"),
    Column("given_up", "given up after refusals"),
]
_RUNS = [
    Column("way", "way"),
    Column("large", "answered, large run"),
    Column("small", "answered, small run"),
    Column("jain", "Jain's index of the runs", 3),
]
_QUIET_COLUMNS = [Column("way", "way"), Column("answered", "answered"), *_TIMES, Column("noisy", "answered, noisy")]
_NOTES = [
    "The service is a model: 33 s alone and 631 s with 120 at once, as measured of sandboxes that 2 x 60 tasks start; "
    "between these points each pair of requests is in each other's way (p = 2), and what nobody waits for any more is "
    "worked on. The table of other services changes these assumptions one by one.",
    "Log-normal, per call, equal for both: work (mean 0.33 s, sigma 0.5), deadline (median 10 s, sigma 0.5), pause for "
    "thought (median 0.3 s, sigma 0.75). Times of answered calls include waiting, refusals and pauses after them. A "
    "refused call comes back after its retry_after, five attempts in all. What is in flight at the end of a window "
    "counts for neither, which spares the slower one its longest calls.",
]  # fmt: skip

QUESTION = Question(
    "overload",
    "What does too much cost, and who pays?",
    run,
    full=Scale(tasks=60, rounds=2, window_s=20.0, others_s=8.0, quiet_s=12.0, burst=1000),
    quick=Scale(tasks=60, rounds=1, window_s=8.0, others_s=5.0, quiet_s=4.0, burst=1000, variants=False),
)
