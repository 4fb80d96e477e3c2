"""`toolhub bench check`: have the ratios moved since the committed results? It informs; a person decides.

Ratios, since times are the machine's: targets in × or %, columns that compare, and, of tables without such a column,
the first measure of each row divided by that of the first row. Only what both results have is compared: a quick run
has fewer tasks, and what it says about these it says under another title.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common.measure import median, percentile
from benchmarks.common.result import Json, ratio
from benchmarks.report.pages import newest_results, verdict

# Chosen so that their quick runs take less than five minutes together, and have ratios that full runs have, too.
FAST = ("overhead", "throughput", "init", "idle")
# The noise of a result that does not tell how far apart its rounds are.
DEFAULT_NOISE = 0.25
# Rounds may agree by chance, above all when there are three.
LEAST_NOISE = 0.1
# Shares of a few percent move by half without anything having happened.
_POINTS = 2.0
_COMPARES = re.compile(r"÷|×|%|\btimes\b")
_UNITS = ("×", "%")
# How a heading says that its numbers are measures: a unit, a rate or a comparison. Plain counts seldom are.
_MEASURES = re.compile(r"(?<!\w)(s|ms|µs|MiB|MB|KiB|GiB|%)(?!\w)|/s\b|÷|×|times")


@dataclass(frozen=True)
class Ratio:
    """A number that is compared. noise: relative, 0.1 for 10 %. target: None for a cell of a table."""

    name: str
    value: float
    unit: str
    noise: float
    target: Json | None = None


@dataclass(frozen=True)
class Moved:
    """A ratio that changed. old: committed. new: measured now. noise: how much both may differ, relative."""

    old: Ratio
    new: Ratio
    noise: float

    def __str__(self) -> str:
        old, new = self.old, self.new
        unit = f" {new.unit}" if new.unit else ""
        text = f"{new.name}: {old.value:,.3g} -> {new.value:,.3g}{unit}"
        if old.value:
            text += f" ({100 * (new.value / old.value - 1):+,.0f} %, noise {100 * self.noise:.0f} %)"
        if old.target and new.target:
            better = (new.value < old.value) == new.target["at_most"]
            text += ", better" if better else ", worse"
            if verdict(old.target) != verdict(new.target):
                text += f"; the target was {verdict(old.target)}, now it is {verdict(new.target)}"
        return text


@dataclass(frozen=True)
class Comparison:
    """compared: the number of ratios in both results. alone: in one only."""

    question: str
    compared: int
    alone: int
    moved: Sequence[Moved]
    remarks: Sequence[str]

    def lines(self) -> list[str]:
        if not self.compared:
            what = "nothing to compare: no ratio is in both results"
        else:
            what = f"{len(self.moved)} of {self.compared} ratios moved by more than the noise"
        if self.alone:
            what += f"; {self.alone} in one result only, mostly of another scale"
        return [f"{self.question}: {what}", *(f"  {each}" for each in (*self.moved, *self.remarks))]


def compare(committed: Json, fresh: Json) -> Comparison:
    """Compare the ratios of two results of one question."""
    old, new = ({each.name: each for each in ratios(result)} for result in (committed, fresh))
    common = [name for name in old if name in new]
    factor = 2.0 if committed["noise"]["noisy"] or fresh["noise"]["noisy"] else 1.0
    pairs = [Moved(old[name], new[name], factor * math.hypot(old[name].noise, new[name].noise)) for name in common]
    return Comparison(
        question=fresh["question"],
        compared=len(common),
        alone=len(old) + len(new) - 2 * len(common),
        moved=[pair for pair in pairs if _has_moved(pair)],
        remarks=_remarks(committed, fresh),
    )


def _has_moved(pair: Moved) -> bool:
    old, new = pair.old.value, pair.new.value
    if pair.new.unit == "%" and abs(new - old) <= _POINTS:
        return False
    if old <= 0 or new <= 0:
        return old != new
    return max(old / new, new / old) - 1 > pair.noise


def _remarks(committed: Json, fresh: Json) -> list[str]:
    remarks = []
    for name, result in (("committed", committed), ("fresh", fresh)):
        if result["noise"]["noisy"]:
            remarks.append(f"The {name} run was noisy: twice the noise is allowed.")
    old, new = ({key: result["machine"][key] for key in ("cores", "cpu")} for result in (committed, fresh))
    if old != new:
        remarks.append(f"Committed on {old['cores']} cores of {old['cpu']}, now {new['cores']} cores of {new['cpu']}.")
    return remarks


# --- what a result compares -----------------------------------------------------------------------------------------


def ratios(result: Json) -> Iterator[Ratio]:
    """Every ratio of the result that was measured; each name is given once."""
    seen: set[str] = set()
    for each in (*_of_targets(result), *_of_tables(result)):
        if each.name not in seen and math.isfinite(each.value):
            seen.add(each.name)
            yield each


def _of_targets(result: Json) -> Iterator[Ratio]:
    noise = own_noise(result["raw"])
    for target in result["targets"]:
        if target["unit"] in _UNITS and target["value"] is not None:
            yield Ratio(target["claim"], target["value"], target["unit"], noise, target)


def _of_tables(result: Json) -> Iterator[Ratio]:
    for table in result["tables"]:
        for row in table["rows"]:
            keys = [column["key"] for column in table["columns"]]
            texts = [str(row.get(key)) for key in keys if key == keys[0] or isinstance(row.get(key), str)]
            noise = own_noise(_below(result["raw"], texts[0]) or result["raw"])
            for each in _of_row(table, row):
                yield replace(each, name=", ".join((table["title"], *texts, each.name)), noise=noise)


def _of_row(table: Json, row: Json) -> Iterator[Ratio]:
    """Return the row's ratios with the names of their columns."""
    comparing = [column for column in table["columns"][1:] if _COMPARES.search(column["label"])]
    for column in comparing:
        value = row.get(column["key"])
        unit = "%" if "%" in column["label"] else ""
        # The base of a comparison is 1 (or 100 %) in every run.
        if value is not None and value != (100 if unit else 1):
            yield Ratio(column["label"], value, unit, DEFAULT_NOISE)
    first = table["rows"][0]
    for key in _first_measure(table) if not comparing and row is not first else ():
        value = ratio(row.get(key), first.get(key))
        # Memory that others gave back meanwhile may make it negative.
        if value is not None and value > 0:
            label = next(column["label"] for column in table["columns"] if column["key"] == key)
            yield Ratio(f"{label} ÷ first row", value, "×", DEFAULT_NOISE)


def _first_measure(table: Json) -> list[str]:
    """The key of the first column whose numbers have a unit and differ; none if there is no such column."""
    for column in table["columns"][1:]:
        cells = [row.get(column["key"]) for row in table["rows"]]
        numbers = {cell for cell in cells if isinstance(cell, int | float) and math.isfinite(cell)}
        if _MEASURES.search(column["label"]) and len(numbers) > 1:
            return [column["key"]]
    return []


def own_noise(raw: Any) -> float:
    """How far apart the rounds are: half the distance from the 10th to the 90th percentile, divided by the median.

    The median over all series of rounds in `raw`, which are the lists of three or more numbers under keys that end in
    `_by_round`. At least LEAST_NOISE; DEFAULT_NOISE where there are none.
    """
    found = [
        (percentile(rounds, 0.9) - percentile(rounds, 0.1)) / 2 / middle
        for rounds in _rounds(raw)
        if (middle := median(rounds)) > 0
    ]
    return max(LEAST_NOISE, median(found)) if found else DEFAULT_NOISE


def _rounds(raw: Any, *, is_series: bool = False) -> Iterator[list[float]]:
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            yield from _rounds(value, is_series=is_series or str(key).endswith("_by_round"))
    elif is_series and isinstance(raw, list) and len(raw) >= 3 and all(isinstance(each, int | float) for each in raw):
        yield raw


def _below(raw: Any, label: str) -> Json:
    """Return everything under this key, with the keys that lead to it: the raw data of one row."""
    if not isinstance(raw, Mapping):
        return {}
    deeper = {key: found for key, value in raw.items() if key != label and (found := _below(value, label))}
    return deeper | ({label: raw[label]} if label in raw else {})


# --- the command ----------------------------------------------------------------------------------------------------


def check(
    names: Sequence[str], committed: Path, measure: Callable[[str], Json | None], write: Callable[[str], None]
) -> bool:
    """Compare what `measure` gives for each name with the newest result under `committed`. True when nothing moved.

    measure: returns None where there is nothing new, having said why.
    """
    results = newest_results(committed, names)
    has_moved = False
    for name in names:
        if name not in results:
            write(f"{name}: no committed result to compare with")
        elif (fresh := measure(name)) is not None:
            comparison = compare(results[name], fresh)
            has_moved |= bool(comparison.moved)
            for line in comparison.lines():
                write(line)
    return not has_moved


def results_in(directory: Path, names: Sequence[str]) -> dict[str, Json]:
    """The newest results of a run with `--out directory`, or of a `results` directory itself."""
    inside = directory / "results"
    return newest_results(inside if inside.is_dir() else directory, names)
