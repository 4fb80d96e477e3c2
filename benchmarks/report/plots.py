"""A picture of each question's result: what is compared in it, and how it is titled. How it looks is `drawing`'s."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.result import Json
from benchmarks.report.drawing import Band, Bars, Panel, Row, draw
from benchmarks.report.drawing_lanes import Lanes, Legend, Span, Stack, Stacks, Timeline
from benchmarks.report.drawing_lines import Line, Lines

Bands = Sequence[Band]
BandsOf = Callable[[Json], Bands]

_MOST_PANELS = 3
# Headings that say enough only beside their neighbours in the table.
_SPOKEN = {
    "at_1_per_s": "calls/s, 1 in flight",
    "ttft_ms": "TTFT after the wait, ms",
    "cached": "prompt tokens cached",
    "first": "hub RSS at first, MiB",
    "last": "hub RSS at last, MiB",
    "computed": "prompt tokens computed",
}
# How a heading says that its numbers are worth a bar: a unit, a rate or a comparison. Plain counts seldom are.
_DECISIVE = re.compile(r"(?<!\w)(s|ms|µs|MiB|MB|KiB|GiB|%)(?!\w)|/s\b|÷|×|times")


def plot(result: Json, path: Path) -> bool:
    """Draw the result. False when there is nothing to draw: nothing to compare, or no matplotlib to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    title, bands = picture(result)
    if not bands:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(title, bands, foot(result), path)
    return True


def picture(result: Json) -> tuple[str, Bands]:
    """Return the title and what stands below it: nothing where nothing is compared."""
    title, bands_of = _DRAWINGS.get(result["question"], (result["asks"], _fallback))
    return title, _comparing(bands_of(result)) or _comparing(_fallback(result))


def foot(result: Json) -> str:
    """When, where and how good, shorter than in the page."""
    machine, noise, git = result["machine"], result["noise"], result["git"]
    parts = [
        f"toolhub bench {result['question']}, {result['date'][:10]}",
        f"revision {git['revision'][:12] or 'unknown'}{' with local changes' if git['dirty'] else ''}",
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB",
        f"{machine['kernel']}, Python {machine['python']}",
    ]
    if noise["noisy"]:
        parts.append(f"NOISY: others used {noise['others_cpu_percent']:.0f} % of a core")
    if result["quick"]:
        parts.append("QUICK RUN: indicative only")
    # Where it is too long, it is broken between its parts.
    return "\u00a0· ".join(part.replace(" ", "\u00a0") for part in parts)


def _comparing(bands: Bands) -> Bands:
    return [band for band in bands if band.variants > 1]


# --- from tables to bands -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pick:
    """Of the tables whose title fits `title`: their columns named here.

    ours: fits the rows drawn as ours. says: what the titles need to be understood without the page.
    """

    title: str
    keys: tuple[str, ...]
    ours: str = "toolhub"
    is_grouped: bool = False
    """Whether a label is what its group is called, a colon and the variant."""
    says: str = ""

    def __call__(self, result: Json) -> Bands:
        bands = [
            _band(table, self.keys, self.ours, is_grouped=self.is_grouped) for table in _titled(result, self.title)
        ]
        return [replace(band, title=band.title + self.says) for band in bands if band]


def _titled(result: Json, title: str) -> list[Json]:
    return [table for table in result["tables"] if re.search(title, table["title"])]


def _band(table: Json, keys: Iterable[str], ours: str, *, is_grouped: bool = False) -> Bars | None:
    """None when the table has none of the columns."""
    columns = {column["key"]: column for column in table["columns"]}
    picked = [columns[key] for key in keys if key in columns]
    if not picked:
        return None
    rows = []
    for row in table["rows"]:
        whole = _label(table, row)
        group, _, variant = whole.rpartition(": ") if is_grouped else ("", "", whole)
        values = [_number(row.get(column["key"])) for column in picked]
        rows.append(Row(variant, values, bool(re.search(ours, whole)), group))
    panels = [Panel(_SPOKEN.get(column["key"], _plain(column["label"])), column["digits"]) for column in picked]
    return Bars(_plain(table["title"]), panels, rows)


def _label(table: Json, row: Json) -> str:
    """The first column's text; of a number, with what it counts."""
    first = table["columns"][0]
    value = row.get(first["key"])
    return _plain(value) if isinstance(value, str) else f"{first['label']}: {value:,g}" if value is not None else "–"


def _plain(text: str) -> str:
    """Without the marks of Markdown."""
    return text.replace("`", "")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _fallback(result: Json) -> Bands:
    """The first table that compares something, by its first columns that are worth a bar."""
    for table in result["tables"]:
        keys = decisive(table)
        if keys and len(table["rows"]) > 1 and (band := _band(table, keys, "toolhub")):
            return [band]
    return []


def decisive(table: Json) -> list[str]:
    """Return the keys of the first columns whose numbers have a unit and differ; at most three."""
    return [
        column["key"]
        for column in table["columns"][1:]
        if _DECISIVE.search(column["label"])
        and len({number for row in table["rows"] if (number := _number(row.get(column["key"]))) is not None}) > 1
    ][:_MOST_PANELS]


# --- questions with a drawing of their own ------------------------------------------------------------------------


def _both(*parts: BandsOf) -> BandsOf:
    return lambda result: [band for part in parts for band in part(result)]


def _lines(points: Iterable[tuple[str, float, float | None]]) -> list[Line]:
    """A line for each variant. points: variants, x and y; without y there is no point."""
    found: dict[str, list[tuple[float, float]]] = {}
    for variant, x, y in points:
        if y is not None:
            found.setdefault(_plain(variant), []).append((x, y))
    return [Line(variant, sorted(each), "toolhub" in variant) for variant, each in found.items()]


def _init(result: Json) -> Bands:
    """Time and memory by the number of tasks; what was not ready in time has neither."""
    ready = [
        (float(tasks[1].replace(",", "")), row)
        for table in result["tables"]
        if (tasks := re.match(r"([\d,]+) tasks? × ", table["title"]))
        for row in table["rows"]
        if row["ready"] == row["wanted"]
    ]
    return [
        Lines(title, "tasks", label, lines, unit, is_log=True)
        for title, key, label, unit in (
            ("Until every tool is listed and one call answered", "seconds", "wall s", " s"),
            ("Memory at its peak, all processes", "peak_pss_mib", "PSS MiB", " MiB"),
        )
        if (lines := _lines((row["way"], tasks, _number(row.get(key)) or None) for tasks, row in ready))
    ]


def _by_load(result: Json) -> Bands:
    """Latency and goodput by the number of tasks at once."""
    rows = [row for table in _titled(result, "By load") for row in table["rows"]]
    return [
        Lines(title, "tasks at once", label, lines, unit)
        for title, key, label, unit in (
            ("Latency by load: p99 of answered calls", "p99_s", "p99 s", " s"),
            ("Goodput by load: calls answered within their deadline", "goodput", "answered in time/s", "/s"),
        )
        if (lines := _lines((row["way"], _count(row["tasks"]), _number(row.get(key))) for row in rows))
    ]


def _count(cell: object) -> float:
    """Of a number, or of a text that begins with one, such as `120 tasks`."""
    return float(str(cell).split()[0].replace(",", ""))


def _task(result: Json) -> Bands:
    """One task in its lanes, then where the time of the mean task goes, by engine."""
    timelines = [
        Timeline(_plain(variant["way"]), [_span(span) for span in variant["spans"]], variant["is_ours"])
        for variant in result["raw"].get("lanes", [])
    ]
    stacks = [
        Stacks(_plain(table["title"]), [_stack(row) for row in table["rows"]]) for table in _titled(result, _GOES)
    ]
    bands = _comparing([Lanes("One task: when the model and its tools are at work", timelines), *stacks[:_MOST_PANELS]])
    return [Legend(), *bands] if bands else []


def _span(span: Json) -> Span:
    return Span(span["lane"], span["kind"], span["begin"], span["end"])


def _stack(row: Json) -> Stack:
    parts = {kind: _number(row.get(key)) or 0.0 for key, kind in _PARTS.items()}
    return Stack(_plain(row["way"]), parts, _number(row.get("task_s")) or sum(parts.values()), "toolhub" in row["way"])


def _turns(result: Json) -> Bands:
    """Each turn is a group, and when its calls start are the variants."""
    variants = {"one by one": "after it, one by one", "together": "after it, together", "streaming": "as it streams"}
    for table in result["tables"]:
        if all(any(column["key"] == variant for column in table["columns"]) for variant in variants):
            rows = [
                Row(label, [_number(row.get(variant))], variant == "streaming", _plain(row["turn"]))
                for row in table["rows"]
                for variant, label in variants.items()
            ]
            return [Bars(_plain(table["title"]), [Panel("wall time of the turn, s", 2)], rows)]
    return []


_GOES = "Where the time goes"
_PARTS = {"queue_s": "queue", "prefill_s": "prefill", "decode_s": "decode", "tools_s": "tool", "start_s": "start"}
_RATES = ("at_1_per_s", "at_8_per_s", "at_64_per_s")
_TIMES = ("p50_ms", "p99_ms")
_DRAWINGS: dict[str, tuple[str, BandsOf]] = {
    "overhead": ("Time of one call, and calls a second with 1, 8 and 64 in flight", Pick("", ("p50_us", *_RATES))),
    "throughput": ("Calls a second with 1, 8 and 64 in flight", Pick("", _RATES)),
    "init": ("Time until many tasks can work, and the memory they take", _init),
    "storm": ("Time until a whole sweep can work, and its memory then", Pick("tasks? ×", ("seconds", "pss_mib"))),
    "density": (
        "Memory of an idle task, by how its servers are run",
        # Without toolhub each server would be a process of its own, as with `exec`.
        _both(Pick("each further", ("mib", "processes"), "^(?!.*exec)"), Pick("Crowds", ("total", "mib"), "")),
    ),
    "overload": (
        "Too many calls at once, with and without backpressure",
        _both(
            lambda result: _by_load(result) or Pick("windows? of .*everything", ("goodput", "p99_s"))(result),
            Pick("^Other services", ("goodput", "p99_s"), is_grouped=True),
            Pick("^A quiet task", ("p50_s", "p99_s"), ", limit"),
        ),
    ),
    "idle": (
        "Memory of one hub with idle sessions",
        Pick("^One hub", ("hub_rss_mib", "keepers_pss_mib", "servers_pss_mib"), ""),
    ),
    "sweep": ("Memory of a hub over a long sweep", Pick("stays behind", ("first", "last"), "")),
    "soak": ("A soak: time to recover from each kind of fault", Pick("^Faults", ("p50", "p99"), "")),
    "recover": ("After a server was killed: time until all is well again", Pick("kills", _TIMES, "told|served|hub")),
    "sandbox": (
        "Sandboxes: time until the first result, and of a call",
        Pick("^(Until|One call)", _TIMES, "^(?!ipykernel)"),
    ),
    "servers": (
        "toolhub's own servers: searches, start and pages",
        _both(
            Pick("searches", ("each_ms", "cpu_ms", "connections")),
            Pick("tools listed", ("seconds", "each_mb")),
            Pick("with a page", ("each_mb", "processes")),
        ),
    ),
    "kv": (
        "Time to first token (TTFT) after a tool wait, and long conversations",
        _both(
            Pick(
                "^A tool of",
                ("ttft_ms", "cached"),
                "prefill-ahead|pinned",
                says=": is the waiting task's prompt still cached?",
            ),
            Pick("^A long conversation", ("computed", "total_s"), "stride"),
        ),
    ),
    "loop": (
        "The agent loop: calls that start while the model writes, and searches shared",
        _both(_turns, Pick(r"^\d+ agents", ("wall_s", "executions"))),
    ),
    "task": ("A whole task, from its first prompt to its answer", _task),
}
