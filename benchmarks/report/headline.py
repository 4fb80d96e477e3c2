"""The tables of what users notice: a short one in README.md, and all of it on the page of the benchmarks.

`claims` says where the numbers are in the results. A row whose result is missing is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.result import Json
from benchmarks.report.claims import CLAIMS, Cell, Claim
from benchmarks.report.pages import bound, newest_results, quantity, significant, verdict

BEGIN = "<!-- headline: generated from benchmarks/results by `python -m benchmarks.runner report`; do not edit -->"
END = "<!-- /headline -->"
BLOCK = re.compile(r"<!-- headline: .*?<!-- /headline -->", re.DOTALL)
_LOSSES = "Where toolhub does not win"


@dataclass(frozen=True)
class HeadlineRow:
    """A claim with its numbers, in the claim's unit, and where they were found."""

    claim: Claim
    what: str
    who: str
    ours_label: str
    today: float
    ours: float
    result: Json
    table: Json

    @property
    def gain(self) -> float:
        """How many times better; below one it is worse."""
        return self.ours / self.today if self.claim.is_rate else self.today / self.ours

    @property
    def is_worse(self) -> bool:
        """Whether ours is shown as worse. Less than half a percent is no difference."""
        return round(self.gain, 2) < 1


def find(claim: Claim, results: Mapping[str, Json]) -> HeadlineRow | None:
    """Return the claim with its numbers; None where there is no result with both of them yet."""
    result = results.get(claim.question)
    if result is None:
        return None
    for table in result["tables"]:
        title = re.search(claim.title, table["title"])
        today, ours = (_value(table, cell) for cell in (claim.today, claim.ours))
        if title and today and ours:
            column = next(each["label"] for each in table["columns"] if each["key"] == claim.ours.key)
            what = claim.what.format(*title.groups(), column=column)
            return HeadlineRow(
                claim=claim,
                what=what,
                who=claim.today.who or today[0],
                ours_label=ours[0],
                today=today[1] * claim.times,
                ours=ours[1] * claim.times,
                result=result,
                table=table,
            )
    return None


def _value(table: Json, cell: Cell) -> tuple[str, float] | None:
    """Return the label and the number; None for the number if it is not above zero."""
    for row in table["rows"]:
        label = str(row.get(table["columns"][0]["key"])).replace("`", "")
        value = row.get(cell.key)
        if re.search(cell.row, label) and isinstance(value, int | float) and value > 0:
            return label, value
    return None


def missing(results: Mapping[str, Json]) -> list[Claim]:
    """The claims that these results say nothing about."""
    return [claim for claim in CLAIMS if find(claim, results) is None]


# --- README.md ------------------------------------------------------------------------------------------------------


def write(benchmarks: Path, questions: Iterable[str]) -> None:
    """Put the block into the page above the folder `benchmarks`, between its marks; without marks the page stays."""
    page = benchmarks.parent / "README.md"
    if page.is_file():
        text = page.read_text()
        new = BLOCK.sub(lambda _: block(newest_results(benchmarks / "results", questions)), text)
        if new != text:
            page.write_text(new)


def block(results: Mapping[str, Json]) -> str:
    """The marks, the few rows that README.md shows, and one line about the rest."""
    rows = _rows(results)
    shown = [row for row in rows if row.claim.is_headline]
    if not shown:
        return "\n".join([BEGIN, "", "No results yet: `toolhub bench all`.", "", END])
    return "\n".join([BEGIN, "", *_comparison(shown), "", _measured(shown), _loses(rows, results), "", END])


def _loses(rows: Sequence[HeadlineRow], results: Mapping[str, Json]) -> str:
    page = "benchmarks/README.md"
    worse = sorted((row for row in rows if row.is_worse), key=lambda row: row.gain)
    if not worse and not any(_missed(results)):
        return f"Every comparison is in [{page}]({page})."
    anchor = _LOSSES.lower().replace(" ", "-")
    what = f"{len(worse)} of {len(rows)} comparisons and {len(list(_missed(results)))} targets of its own"
    return f"toolhub loses or falls short in {what}: [{_LOSSES.lower()}]({page}#{anchor})."


# --- the page of the benchmarks -------------------------------------------------------------------------------------


def summary(results: Mapping[str, Json]) -> str:
    """List every comparison, then those that toolhub loses and every target that was missed."""
    rows = _rows(results)
    measured, modelled = ([row for row in rows if row.claim.is_modelled is kind] for kind in (False, True))
    lines: list[str] = []
    if measured:
        lines += ["## What users notice", "", *_comparison(measured), "", _measured(measured), ""]
    if modelled:
        lines += ["**Computed by a model of the engine, not measured**", "", *_comparison(modelled), ""]
    return "\n".join([*lines, *_losses(rows, results)])


def _losses(rows: Sequence[HeadlineRow], results: Mapping[str, Json]) -> Iterator[str]:
    worse = [
        (f"{row.what}, times better than {row.who}", f"{_times(row.gain)} ×", "at least 1 ×", _command(row.result))
        for row in rows
        if row.is_worse
    ]
    if lost := [*worse, *_missed(results)]:
        yield f"## {_LOSSES}\n\nComparisons above that are below 1, and every target that was missed.\n"
        yield from _table(("what", "measured", "wanted", "command"), lost, "lrrl")
        yield ""


def _missed(results: Mapping[str, Json]) -> Iterator[tuple[str, str, str, str]]:
    for name, result in results.items():
        for target in result["targets"]:
            if verdict(target) == "missed":
                value = quantity(target["value"], target["unit"])
                yield f"{name}: {target['claim']}", value, bound(target), _command(result)


# --- both -----------------------------------------------------------------------------------------------------------


def _rows(results: Mapping[str, Json]) -> list[HeadlineRow]:
    return [found for claim in CLAIMS if (found := find(claim, results))]


def _comparison(rows: Sequence[HeadlineRow]) -> Iterator[str]:
    heading = ("what", "today", "toolhub", "times better", "command")
    cells = [
        (
            row.what,
            f"{quantity(row.today, row.claim.unit)}: {row.who}",
            quantity(row.ours, row.claim.unit),
            _times(row.gain),
            _command(row.result),
        )
        for row in rows
    ]
    return _table(heading, cells, "llrrl")


def _measured(rows: Sequence[HeadlineRow]) -> str:
    """Where and when it was measured."""
    results = [row.result for row in rows]
    places = {
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB"
        for machine in (result["machine"] for result in results)
    }
    days = sorted({str(result["date"])[:10] for result in results})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"Measured {when} on {' and '.join(sorted(places))}; each command measures its row again."


def _times(gain: float) -> str:
    return f"{gain:.2f}" if gain < 10 else significant(gain)


def _command(result: Json) -> str:
    marks = ["noisy"] * result["noise"]["noisy"] + ["quick run"] * result["quick"]
    return f"`{result['command']}`" + (f" ({', '.join(marks)})" if marks else "")


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    """sides: `l` or `r` for each column."""
    for cells in (heading, ["---" if side == "l" else "---:" for side in sides], *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
