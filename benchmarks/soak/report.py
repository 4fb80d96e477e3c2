"""What a soak publishes: tables, targets and notes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.common.leak_watch import least_squares
from benchmarks.common.measure import percentile
from benchmarks.common.result import Column, Json, Outcome, Table, Target
from benchmarks.soak.ledger import SERVERS, quantile

if TYPE_CHECKING:
    from benchmarks.soak.benchmark import SoakFindings, SoakSample, SoakScale

_MIB = 2**20
_MILLION = 1_000_000
# The limit is a growth of 2 % per million calls. With fewer calls the allocator's steps hide it.
ENOUGH_CALLS = 200_000
SLOPE_PERCENT = 2.0
# Until then the hub opens sessions, fills caches and grows the allocator's arenas.
_WARM_UP = 0.25
_LEFT_OUT = "left out"
_LEFT = ("cgroups", "mounts", "temporary_files")
_SHOWN = {
    "exec": "stdio, a process per task (exec)",
    "fork": "stdio, a process per task (fork)",
    "shared": "stdio, one process for all tasks",
    "builtin": "builtin",
    "http": "HTTP server",
    "python": "sandboxes",
    "mcp": "any of them, through /mcp",
}


def outcome(scale: SoakScale, found: SoakFindings, *, is_interrupted: bool) -> Outcome:
    tables = [_calls_table(found), _errors_table(found), _faults_table(found), _growth_table(found), _left_table(found)]
    return Outcome(
        tables=[table for table in tables if table.rows],
        targets=targets(found),
        notes=_notes(scale, found, is_interrupted),
        raw={**found.to_json(), "growth": growth(found.samples)},
    )


# --- verdict ----------------------------------------------------------------------------------------------------------


def targets(found: SoakFindings) -> list[Target]:
    counts, after = found.counts, found.inventories.get("after", {})
    grown = growth(found.samples)
    percent = None if grown is None else grown["percent_per_million"]
    return [
        Target("calls executed twice that must not be", counts.executed_twice, 0),
        Target("calls lost without an answer", counts.lost, 0),
        Target("wrong answers", counts.wrong, 0),
        Target('calls executed although told `sent` = "no"', counts.broken_promises, 0),
        Target("calls answered and never executed", counts.unexplained, 0),
        Target("faults not recovered from", sum(map(_is_unrecovered, found.faults)), 0),
        Target("processes left behind", found.orphans, 0),
        Target("cgroups, mounts and temporary files left", sum(after.get(kind, 0) for kind in _LEFT), 0),
        Target("growth of the hub per million calls", percent, SLOPE_PERCENT, "%"),
    ]


def growth(samples: list[SoakSample]) -> Json | None:
    """Return the growth in the hub's longest life without its first quarter; None if that has too few calls."""
    if not samples:
        return None
    longest, _ = Counter(sample.life for sample in samples).most_common(1)[0]
    life = [sample for sample in samples if sample.life == longest]
    settled = [sample for sample in life if sample.calls >= _WARM_UP * life[-1].calls]
    calls = settled[-1].calls - settled[0].calls
    if calls < ENOUGH_CALLS:
        return None
    slope = least_squares([s.calls / _MILLION for s in settled], [s.rss_bytes for s in settled])
    quarter = max(1, len(settled) // 4)
    first, last = ([s.descriptors for s in part] for part in (settled[:quarter], settled[-quarter:]))
    return {
        "calls": calls,
        "first_bytes": settled[0].rss_bytes,
        "last_bytes": settled[-1].rss_bytes,
        "bytes_per_million": slope,
        "percent_per_million": 100 * slope / settled[0].rss_bytes,
        "first_descriptors": percentile(first, 0.5),
        "last_descriptors": percentile(last, 0.5),
    }


def _is_left_out(fault: Json) -> bool:
    return bool(fault["problem"].startswith(_LEFT_OUT))


def _is_unrecovered(fault: Json) -> bool:
    return bool(fault["problem"]) and not _is_left_out(fault)


# --- tables -----------------------------------------------------------------------------------------------------------


def _calls_table(found: SoakFindings) -> Table:
    counts = found.counts
    row = {
        "calls": counts.calls,
        "answered": counts.answered,
        "failed": sum(counts.errors.values()),
        "given_up": counts.given_up,
        "wrong": counts.wrong,
        "lost": counts.lost,
        "twice": counts.executed_twice,
        "promises": counts.broken_promises,
        "repeated": counts.repeated,
        "rate": counts.calls / max(1.0, found.seconds),
        "p50": quantile(counts.milliseconds, 0.5),
        "p99": quantile(counts.milliseconds, 0.99),
        "longest": counts.longest_ms / 1e3,
    }
    columns = [
        Column("calls", "calls"),
        Column("answered", "answered"),
        Column("failed", "attempts that failed"),
        Column("given_up", "given up by callers"),
        Column("wrong", "wrong answers"),
        Column("lost", "lost without an answer"),
        Column("twice", "executed twice"),
        Column("promises", 'executed though sent = "no"'),
        Column("repeated", "read-only, repeated"),
        Column("rate", "calls/s"),
        Column("p50", "p50 ms"),
        Column("p99", "p99 ms"),
        Column("longest", "longest silence s", 1),
    ]
    return Table("All calls", columns, [row])


def _errors_table(found: SoakFindings) -> Table:
    sent: dict[str, Json] = {}
    for name, count in found.counts.errors.items():
        error, _, how = name.partition("/")
        row = sent.setdefault(error, {"error": error, "no": 0, "maybe": 0})
        row[how] += count
    rows = sorted(sent.values(), key=lambda row: -row["no"] - row["maybe"])
    columns = [Column("error", "error"), Column("no", 'sent = "no"'), Column("maybe", 'sent = "maybe"')]
    return Table("Attempts that failed, by what the caller was told", columns, rows)


def _faults_table(found: SoakFindings) -> Table:
    rows = []
    for kind in sorted({fault["kind"] for fault in found.faults}):
        faults = [fault for fault in found.faults if fault["kind"] == kind and not _is_left_out(fault)]
        if not faults:
            continue
        times = [fault["recovered_ms"] for fault in faults if fault["recovered_ms"] is not None]
        errors = [sum(fault.get("errors", {}).values()) for fault in faults]
        rows.append({
            "kind": kind,
            "count": len(faults),
            "errors": sum(errors) / len(errors),
            "p50": percentile(times, 0.5) if times else None,
            "p99": percentile(times, 0.99) if times else None,
            "unrecovered": sum(map(_is_unrecovered, faults)),
        })  # fmt: skip
    columns = [
        Column("kind", "fault"),
        Column("count", "times"),
        Column("errors", "attempts that failed meanwhile, mean", 1),
        Column("p50", "recovered after, p50 ms"),
        Column("p99", "p99 ms"),
        Column("unrecovered", "not recovered"),
    ]
    return Table("Faults", columns, rows)


def _growth_table(found: SoakFindings) -> Table:
    grown = growth(found.samples)
    rows = [] if grown is None else [{
        "what": "the hub's longest life, without its first quarter",
        "calls": grown["calls"],
        "first": grown["first_bytes"] / _MIB,
        "last": grown["last_bytes"] / _MIB,
        "slope": grown["bytes_per_million"] / _MIB,
        "percent": grown["percent_per_million"],
        "first_fds": grown["first_descriptors"],
        "last_fds": grown["last_descriptors"],
    }]  # fmt: skip
    columns = [
        Column("what", "growth"),
        Column("calls", "calls"),
        Column("first", "hub RSS MiB, first", 1),
        Column("last", "last", 1),
        Column("slope", "MiB per million calls", 2),
        Column("percent", "% per million calls", 2),
        Column("first_fds", "descriptors, first"),
        Column("last_fds", "last"),
    ]
    return Table("Growth under load", columns, rows)


def _left_table(found: SoakFindings) -> Table:
    titles = {"before": "hub up, no task yet", "loaded": "hub up, all tasks closed", "after": "hub ended"}
    rows = [{"when": title, **found.inventories[key]} for key, title in titles.items() if key in found.inventories]
    columns = [
        Column("when", "when"),
        Column("processes", "processes"),
        Column("descriptors", "descriptors of the hub"),
        Column("sockets", "sockets of the hub"),
        Column("cgroups", "cgroups"),
        Column("mounts", "mounts, without its disk"),
        Column("temporary_files", "temporary files"),
        Column("state_files", "files in the state folder"),
    ]
    return Table("What there is before and after", columns, rows)


def _notes(scale: SoakScale, found: SoakFindings, is_interrupted: bool) -> list[str]:
    shares = found.counts.by_server
    total = max(1, sum(shares.values()))
    mix = ", ".join(f"{_SHOWN[name]} {shares[name] / total:.0%}" for name in SERVERS if shares[name])
    struck = sum(not _is_left_out(fault) for fault in found.faults)
    notes = [
        f"{scale.tasks} tasks at once, {scale.calls_each} calls each, then others; seed {found.seed}. Calls: {mix}.",
        f"{struck} faults of {len({f['kind'] for f in found.faults if not _is_left_out(f)})} kinds in "
        f"{found.seconds / 60:.0f} minutes, in an order that the seed decides; {found.lives} starts of the hub, which "
        "is killed and restarted only in the first three tenths of the run.",
        'A caller repeats what failed with `sent` = "no", with the same key; what may have been executed it gives up, '
        "unless the tool is read-only (every fifth call). Every tool writes the key to a ledger before it answers; "
        "code in a sandbox counts its executions itself.",
        "Recovered: the first answered call of the server that was struck (or of a new task), from the fault on; for "
        "what lasts, such as a stopped process, from its end. The longest silence is the longest wait of one attempt "
        "for its answer or error.",
    ]
    struck_kinds = {fault["kind"] for fault in found.faults if not _is_left_out(fault)}
    reasons = {fault["kind"]: fault["problem"].removeprefix("left out: ") for fault in found.faults}
    if missing := [f"{kind} ({why})" for kind, why in reasons.items() if kind not in struck_kinds]:
        notes.append(f"Left out: {', '.join(missing)}.")
    notes += [f"Not recovered: {f['kind']}, {f['what']}: {f['problem']}." for f in found.faults if _is_unrecovered(f)]
    if is_interrupted:
        notes.append(f"Ended by Ctrl-C after {found.counts.calls:,} of {scale.calls:,} calls.")
    elif found.counts.calls < scale.calls:
        notes.append(f"Ended by its time limit after {found.counts.calls:,} of {scale.calls:,} calls.")
    return notes
