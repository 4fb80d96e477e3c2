"""What does overload cost? Two runs of 60 tasks call one service that gets slower with each call in flight.

The service takes 0.33 s alone and 6.31 s with 120 at once. `load` applies one load to the variants.
Here: the highest load, lower ones, other services, and a quiet task beside a loud one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from benchmarks.common.hub_process import ServedHub
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.overload.agents import SERVER, Habits
from benchmarks.overload.load import (
    OPEN,
    OURS,
    RUNS,
    SCALE,
    LoadResult,
    OverloadCase,
    WorkersByVariant,
    ask,
    in_turns,
    jain,
    open_hub,
    open_hubs,
    open_workers,
    pooled,
    server,
    side_by_side,
)
from benchmarks.questions import QUESTIONS

# A limit set by hand, well below the best one, so that a caller waits for a fraction of a call.
_BINDING = 12
_QUIET = Habits(think_s=0.2, deadline_s=60.0, deadline_sigma=0.0)


@dataclass(frozen=True)
class OverloadScale:
    """tasks: of each run in the main case, which has rounds of window_s. Each of the others has one of others_s.

    loads: fewer tasks, of both runs together, in rising order; load_s for each. quiet_s: for quiet and noisy.
    """

    tasks: int
    rounds: int
    window_s: float
    loads: tuple[int, ...]
    load_s: float
    others_s: float
    quiet_s: float
    burst: int
    variants: bool = True


def run(scale: OverloadScale) -> Outcome:
    outcome = Outcome(notes=[*_NOTES])
    main = OverloadCase(f"2 runs x {scale.tasks} tasks", (scale.tasks, scale.tasks))
    with open_workers() as workers:
        most = _overload(workers, scale, main, outcome)
        _by_load(workers, scale, main, most, outcome)
        _runs(workers, scale, main, outcome)
        if scale.variants:
            _variants(workers, scale, main, outcome)
        _quiet(workers, scale, main, outcome)
    return outcome


# --- everybody at once ----------------------------------------------------------------------------------------------


def _overload(
    workers: WorkersByVariant, scale: OverloadScale, case: OverloadCase, outcome: Outcome
) -> dict[str, LoadResult]:
    """Measure the highest load on new hubs, which must find their limit within the window."""
    rounds = []
    for number in range(scale.rounds):
        with open_hubs(case) as hubs:
            rounds.append(in_turns(workers, hubs, case, scale.window_s, number))
    found = pooled(rounds)
    title = f"{case.name}, windows of {scale.window_s:g} s, everything 1:{SCALE}"
    outcome.tables.append(Table(title, _COLUMNS, [_row(variant, each) for variant, each in found.items()]))
    outcome.raw["overload"] = _raw(found)
    theirs, ours = found[OPEN], found[OURS]
    outcome.targets += [
        Target("goodput ÷ no backpressure", ratio(ours.goodput, theirs.goodput), 2, "×", at_most=False),
        Target("p99 of answered calls ÷ no backpressure", ratio(ours.latency(0.99), theirs.latency(0.99)), 0.3, "×"),
        Target("Jain's index over all tasks", ours.fairness, 0.95, at_most=False),
    ]
    return found


def _raw(found: Mapping[str, LoadResult]) -> Json:
    return {variant: each.tallies for variant, each in found.items()}


def _row(name: str, found: LoadResult) -> Json:
    return {
        "way": name,
        **_answers(found),
        "jain": found.fairness,
        **{key: found.total(key) for key in ("late", "expired", "refusals", "given_up")},
    }


def _answers(found: LoadResult) -> Json:
    return {"goodput": found.goodput, "p50_s": found.latency(0.5), "p99_s": found.latency(0.99)}


def _by_load(
    workers: WorkersByVariant,
    scale: OverloadScale,
    main: OverloadCase,
    most: Mapping[str, LoadResult],
    outcome: Outcome,
) -> None:
    """Raise the load step by step on the same hubs. They know the limit of the step before, so steps can be short.

    The last step is the main case on new hubs, which includes finding the limit.
    """
    found: dict[int, Mapping[str, LoadResult]] = {}
    with open_hubs(main) as hubs:
        for tasks in scale.loads:
            case = replace(main, name=f"{tasks} tasks", tasks=(tasks - tasks // 2, tasks // 2))
            found[tasks] = in_turns(workers, hubs, case, scale.load_s)
            outcome.raw[case.name] = _raw(found[tasks])
    all_tasks = sum(main.tasks)
    found[all_tasks] = most
    title = (
        f"By load, rising at hubs that stay, a window of {scale.load_s:g} s for each; "
        f"{all_tasks} tasks at new ones, {scale.window_s:g} s"
    )
    add_by_load(found, title, outcome)


def add_by_load(found: Mapping[int, Mapping[str, LoadResult]], title: str, outcome: Outcome) -> None:
    """found: by tasks of both runs together, and by way."""
    numbered = [(tasks, _load_row(variant, each)) for tasks, each in found.items() for variant in each]
    # tasks is a text here, and what compares is a column, so that `bench check` compares equal loads with each other.
    rows = [{**row, "tasks": f"{tasks} tasks"} for tasks, row in numbered]
    outcome.tables.append(Table(title, _LOAD_COLUMNS, rows))
    outcome.raw["by load"] = [{**row, "tasks": tasks} for tasks, row in numbered]


def _load_row(variant: str, found: Mapping[str, LoadResult]) -> Json:
    row = {"way": variant, **_answers(found[variant]), "refused": found[variant].refused}
    if variant != OPEN:
        row |= {
            "goodput_ratio": ratio(found[variant].goodput, found[OPEN].goodput),
            "p99_ratio": ratio(found[variant].latency(0.99), found[OPEN].latency(0.99)),
        }
    return row


# --- other loads and other services ---------------------------------------------------------------------------------


def _beside(workers: WorkersByVariant, case: OverloadCase, window_s: float) -> dict[str, LoadResult]:
    """Measure both variants at the same time, on new hubs with new services."""
    with open_hubs(case) as hubs:
        return side_by_side(workers, hubs, case, window_s)


def _runs(workers: WorkersByVariant, scale: OverloadScale, main: OverloadCase, outcome: Outcome) -> None:
    """Measure fairness: one run has three times the tasks of the other."""
    many = scale.tasks * 3 // 2
    case = replace(main, name=f"{many} tasks beside {2 * scale.tasks - many}", tasks=(many, 2 * scale.tasks - many))
    found = _beside(workers, case, scale.others_s)
    rows = []
    for variant, each in found.items():
        runs = [each.answered(number) for number in range(len(RUNS))]
        rows.append({"way": variant, "large": runs[0], "small": runs[1], "jain": jain(runs)})
    title = f"Shares of two runs: {case.name}, one window of {scale.others_s:g} s, both ways at the same time"
    outcome.tables.append(Table(title, _RUNS, rows))
    outcome.raw["runs"] = _raw(found)


def _variants(workers: WorkersByVariant, scale: OverloadScale, main: OverloadCase, outcome: Outcome) -> None:
    """Measure each open assumption of the service's model the other way round, and a small load."""
    few = scale.tasks // 5
    cases = [
        replace(main, name="calls have 6 s, not 10", habits=replace(main.habits, deadline_s=6.0)),
        replace(main, name="calls do not slow each other down (p = 1)", p=1.0),
        replace(main, name="stops abandoned calls", stops_abandoned=True),
        replace(main, name=f"2 x {few} tasks at a new hub", tasks=(few, few)),
    ]
    rows = []
    for case in cases:
        found = _beside(workers, case, scale.others_s)
        rows += [_row(f"{case.name}: {variant}", each) for variant, each in found.items()]
        outcome.raw[case.name] = _raw(found)
    title = f"Other services, and few tasks: one window of {scale.others_s:g} s each, both ways at the same time"
    outcome.tables.append(Table(title, _COLUMNS, rows))


# --- one who asks seldom beside one who asks for everything ---------------------------------------------------------


def _quiet(workers: WorkersByVariant, scale: OverloadScale, main: OverloadCase, outcome: Outcome) -> None:
    """Measure a quiet task: alone, and beside a noisy one. It makes the same calls in all three rows."""
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
            quiet, noisy = ask(
                [
                    (worker, {"address": hub.address, **each})
                    for worker, each in zip(workers[OURS], requests, strict=True)
                ]
            )
        rows.append(_quiet_row(name, scale.quiet_s, quiet, noisy))
        outcome.raw[f"quiet {name}"] = quiet
    outcome.tables.append(Table(f"A quiet task, {scale.quiet_s:g} s", _QUIET_COLUMNS, rows))
    p99 = ratio(rows[1]["p99_s"], rows[0]["p99_s"])
    outcome.targets.append(Target("quiet task's p99 beside a burst ÷ alone", p99, 2, "×"))


def _quiet_row(name: str, window_s: float, quiet: Json, noisy: Json) -> Json:
    found = LoadResult(window_s, [quiet])
    return {
        "way": name,
        "answered": found.answered(0),
        "p50_s": found.latency(0.5),
        "p99_s": found.latency(0.99),
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
_LOAD_COLUMNS = [
    Column("way", "way"),
    Column("tasks", "load"),
    Column("goodput", "answered in time/s", 1),
    *_TIMES,
    Column("refused", "share given up after refusals", 3),
    Column("goodput_ratio", "in time/s ÷ no backpressure", 2),
    Column("p99_ratio", "p99 ÷ no backpressure", 2),
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
    "between these points each pair of requests slows each other down (p = 2), and abandoned requests are "
    "worked on. The table of other services changes these assumptions one by one.",
    "Log-normal, per call, equal for both: work (mean 0.33 s, sigma 0.5), deadline (median 10 s, sigma 0.5), pause for "
    "thought (median 0.3 s, sigma 0.75). Times of answered calls include waiting, refusals and pauses after them. A "
    "refused call comes back after its retry_after, five attempts in all. What is in flight at the end of a window "
    "counts for neither, which spares the slower one its longest calls.",
    "A limit begins low and has to be found. In the table by load the hubs stay while the load rises, so each step has "
    "what the one before taught; what finding it costs few tasks at a new hub is in the table of other services. Where "
    "both ways are asked at the same time, each has its own hub, service and agents; the service only waits.",
]  # fmt: skip

BENCHMARK = Benchmark(
    "overload",
    QUESTIONS["overload"],
    run,
    full=OverloadScale(
        tasks=60, rounds=2, window_s=10.0, loads=(8, 24, 60), load_s=5.0, others_s=8.0, quiet_s=7.0, burst=1000
    ),
    quick=OverloadScale(
        tasks=60,
        rounds=1,
        window_s=8.0,
        loads=(8, 24),
        load_s=3.0,
        others_s=5.0,
        quiet_s=4.0,
        burst=1000,
        variants=False,
    ),
)
