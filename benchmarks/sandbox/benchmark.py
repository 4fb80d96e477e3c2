"""What does a place to run code cost? Sandboxes of the `local` backend, in turns with an ipykernel.

Time until the first result, time of a call, memory, and what a storm of new ones does to those that are there.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import anyio

from benchmarks.common.measure import median, percentile, spread
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.questions import QUESTIONS
from benchmarks.sandbox import ipykernel
from benchmarks.sandbox.density import GIB, STARTS_AT_ONCE, Storm, measure_kernels, measure_memory, measure_storm
from benchmarks.sandbox.orphans import watch_orphans
from benchmarks.sandbox.startup import POOL, StartupRounds, StartupTimes, Times, measure
from toolhub_runtime import install_command

MIB = 2**20
_STARTUP_TIMES = ("first", "end", "call")
_STORMS = ("before", "during", "first")
_FIRST = {
    "bare, pooled": "`bare`, from the pool",
    "bare, unpooled": "`bare`, pool empty",
    "bare, zygote": "`bare`, first of its profile (starts the zygote)",
    "data, pooled": "`data`, from the pool",
    "data, unpooled": "`data`, pool empty",
    "data, zygote": "`data`, first of its profile (starts the zygote)",
    "kernel": "ipykernel",
    "kernel with data": "ipykernel, and import of what `data` has loaded",
}
_CALL = {"exec": "exec_code, task of a hub", "command": "run_command (`bash -lc true`)", "kernel": "ipykernel"}
_TIMES = [Column("p50_ms", "p50 ms", 2), Column("p95_ms", "p95 ms", 2), Column("p99_ms", "p99 ms", 2)]


@dataclass(frozen=True)
class SandboxScale:
    """live: sandboxes whose memory is measured; there, asked: see `measure_storm`."""

    rounds: StartupRounds
    live: int
    kernels: int
    there: int = 50
    asked: int = 60
    warm_up_s: float = 3.0
    pauses_s: tuple[float, ...] = (0.0, 0.1)
    """One storm for each: how long existing sandboxes wait between calls."""
    data: bool = importlib.util.find_spec("pandas") is not None and importlib.util.find_spec("matplotlib") is not None
    ipykernel: bool = ipykernel.is_installed()


def run(scale: SandboxScale) -> Outcome:
    profiles = ("bare", "data") if scale.data else ("bare",)
    with watch_orphans() as left:
        times = anyio.run(lambda: measure(profiles, scale.rounds, left, kernels=scale.ipykernel))
        memory = {name: anyio.run(measure_memory, name, scale.live, left) for name in profiles}
        if scale.ipykernel:
            memory["kernel"] = anyio.run(measure_kernels, scale.kernels)
        storms = {
            pause_s: anyio.run(measure_storm, scale.there, scale.asked, scale.warm_up_s, pause_s, left)
            for pause_s in scale.pauses_s
        }
    return Outcome(
        tables=[_first_table(times), _call_table(times), _memory_table(memory), _storm_table(storms, scale)],
        targets=_targets(times, memory, storms, left.count),
        notes=_notes(scale),
        raw=_raw(times, memory, storms),
        unwaited_cpu_s=left.unwaited_cpu_s,
    )


def _notes(scale: SandboxScale) -> list[str]:
    notes = [
        f"From asking for a sandbox to the result of `1 + 1`. The pool keeps {POOL} ready and is full again before the "
        "next one is taken; where it is empty the zygote of the profile is up. Ways take turns, round 0 is discarded.",
        "The kernel is driven by jupyter_client from the same event loop; what is waited for is the reply on its shell "
        "channel, which has the value. `wait_for_ready()` would add 0.2 s to its start.",
        "Memory is what one more costs. MemAvailable: what the machine lost, kernel memory included; noisy if others "
        "run. PSS: pages of the processes only, shared ones split among their users. Per GiB: by the larger one.",
        f"In a storm {scale.there} sandboxes run `1 + 1` again and again; {scale.asked} owners ask for one at once, "
        f"of which {STARTS_AT_ONCE} may be starting at a time, as in a hub. Without a pause the calls alone keep "
        "the machine busy, and each waits for the others.",
        "How long `exec_code` waits during a storm is a matter of luck, as its 60 starts take both cores for less than "
        "a second: nine alternating runs of two revisions beside other work gave medians of 13 to 81 ms and of 15 to "
        "56 ms, so that one run compares nothing.",
    ]  # fmt: skip
    if not scale.ipykernel:
        notes.append(f"Left out: ipykernel; {install_command('bench')}.")
    if not scale.data:
        notes.append("Left out: the profile `data`; pip install pandas matplotlib.")
    return notes


# --- tables -------------------------------------------------------------------------------------------------------


def _first_table(times: StartupTimes) -> Table:
    rows: list[Json] = []
    for variant in (variant for variant in _FIRST if variant in times.first):
        base = "kernel with data" if "data" in variant else "kernel"
        rows.append(
            {"what": _FIRST[variant], **_times(times.first[variant]), "vs_kernel": _faster(times.first, base, variant)}
        )
    columns = [Column("what", "way"), Column("count", "count"), *_TIMES]
    return Table("Until the first result", [*columns, Column("vs_kernel", "times faster than ipykernel", 1)], rows)


def _call_table(times: StartupTimes) -> Table:
    named = {label: times.call[variant] for variant, label in _CALL.items() if variant in times.call}
    named |= {
        f"kill, `{variant.partition(',')[0]}`": times.end[variant]
        for variant in times.end
        if variant.endswith("unpooled")
    }
    rows = [{"what": label, **_times(values)} for label, values in named.items()]
    return Table("One call", [Column("what", "call"), Column("count", "count"), *_TIMES], rows)


def _memory_table(memory: dict[str, Json]) -> Table:
    rows: list[Json] = []
    for name, found in memory.items():
        pss = found["pss_bytes"]
        rows.append({
            "what": "ipykernel" if name == "kernel" else f"`{name}`",
            "count": found["count"],
            "available_mib": found["available_bytes"] / MIB,
            "pss_mib": pss / MIB if pss else None,
            "per_gib": _per_gib(found),
        })  # fmt: skip
    columns = [
        Column("what", "live and used"),
        Column("count", "count"),
        Column("available_mib", "MemAvailable MiB each", 2),
        Column("pss_mib", "PSS MiB each", 2),
        Column("per_gib", "per GiB"),
    ]
    return Table("Memory", columns, rows)


def _storm_table(storms: dict[float, Storm], scale: SandboxScale) -> Table:
    rows: list[Json] = []
    for pause_s, storm in storms.items():
        named = {
            "exec_code before": storm.before,
            "exec_code during": storm.during,
            "first result of the new": storm.first,
        }
        for label, values in named.items():
            rows.append({"pause": _pause(pause_s), "what": label, **_times(values), "max_ms": max(values)})
    columns = [Column("pause", "those that are there call"), Column("what", "what"), Column("count", "count")]
    title = f"{scale.asked} sandboxes asked for at once while {scale.there} run code"
    return Table(title, [*columns, *_TIMES, Column("max_ms", "max ms", 2)], rows)


def _pause(pause_s: float) -> str:
    return f"every {pause_s:g} s" if pause_s else "without a pause"


def _times(values: list[float]) -> Json:
    return {
        "count": len(values),
        "p50_ms": median(values),
        "p95_ms": percentile(values, 0.95),
        "p99_ms": percentile(values, 0.99),
    }


def _faster(first: Times, base: str, variant: str) -> float | None:
    return ratio(_p50(first, base), _p50(first, variant)) if base != variant else None


def _p50(times: Times, variant: str) -> float | None:
    return median(times[variant]) if times.get(variant) else None


def _per_gib(found: Json) -> float | None:
    """Return how many fit, by the larger of the two figures: other programs may have freed memory meanwhile."""
    each = max(found["available_bytes"], found["pss_bytes"] or 0.0)
    return GIB / each if each > 0 else None


# --- verdict ------------------------------------------------------------------------------------------------------


def _targets(times: StartupTimes, memory: dict[str, Json], storms: dict[float, Storm], left: int) -> list[Target]:
    first, call = times.first, times.call
    pooled, unpooled = "bare, pooled", "bare, unpooled"
    return [
        Target("from the pool, first result p50", _p50(first, pooled), 3, "ms"),
        Target("pool empty, first result p50", _p50(first, unpooled), 60, "ms"),
        Target("ipykernel ÷ pool empty, first result p50", _faster(first, "kernel", unpooled), 20, "×", at_most=False),
        Target("exec_code p50", _p50(call, "exec"), 0.5, "ms"),
        Target("run_command p50", _p50(call, "command"), 20, "ms"),
        Target("live `bare` sandboxes per GiB", _per_gib(memory["bare"]), 300, at_most=False),
        *(target for pause_s, storm in storms.items() for target in _storm_targets(_pause(pause_s), storm)),
        Target("processes left behind", left, 0),
    ]


def _storm_targets(pause: str, storm: Storm) -> list[Target]:
    return [
        Target(f"storm, calls {pause}: first result p99", percentile(storm.first, 0.99), 1500, "ms"),
        Target(f"storm, calls {pause}: exec_code p99", percentile(storm.during, 0.99), 50, "ms"),
    ]


def _raw(times: StartupTimes, memory: dict[str, Json], storms: dict[float, Storm]) -> Json:
    startup = {
        name: {variant: spread(found) for variant, found in getattr(times, name).items()} for name in _STARTUP_TIMES
    }
    stormy = {
        _pause(pause_s): {name: spread(getattr(storm, name)) for name in _STORMS} | {"wall_s": storm.wall_s}
        for pause_s, storm in storms.items()
    }
    return {**startup, "memory": memory, "storms": stormy}


BENCHMARK = Benchmark(
    "sandbox",
    QUESTIONS["sandbox"],
    run,
    full=SandboxScale(StartupRounds(number=6, starts=10, calls=200, commands=10), live=150, kernels=8),
    quick=SandboxScale(StartupRounds(number=2, starts=5, calls=100, commands=5), live=40, kernels=3),
)
