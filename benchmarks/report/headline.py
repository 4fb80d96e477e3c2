"""The README's table: what users notice, picked from the newest results, and where toolhub does not win.

No number stands here: a row says where its two cells are (see `claims`), and one whose source is missing is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.result import Json
from benchmarks.report.claims import CLAIMS, Cell, Claim
from benchmarks.report.pages import bound, newest_results, pictures, quantity, significant, verdict

BEGIN = "<!-- headline: generated from benchmarks/results by `python -m benchmarks.runner report`; do not edit -->"
END = "<!-- /headline -->"
BLOCK = re.compile(r"<!-- headline: .*?<!-- /headline -->", re.DOTALL)
# The README is short: the first that are there, in this order.
_MOST_PICTURES = 3
_PICTURES = ("task", "init", "overload", "kv")


@dataclass(frozen=True)
class HeadlineRow:
    """A claim with its numbers, in the claim's unit."""

    claim: Claim
    what: str
    who: str
    today: float
    ours: float
    result: Json

    @property
    def gain(self) -> float:
        """How many times better; below one it is worse."""
        return self.ours / self.today if self.claim.is_rate else self.today / self.ours

    @property
    def is_worse(self) -> bool:
        """As it is shown: less than half a percent is no difference."""
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
                claim, what, claim.today.who or today[0], today[1] * claim.times, ours[1] * claim.times, result
            )
    return None


def _value(table: Json, cell: Cell) -> tuple[str, float] | None:
    """The label and the number; what is not above zero has no ratio."""
    for row in table["rows"]:
        label = str(row.get(table["columns"][0]["key"])).replace("`", "")
        value = row.get(cell.key)
        if re.search(cell.row, label) and isinstance(value, int | float) and value > 0:
            return label, value
    return None


def missing(results: Mapping[str, Json]) -> list[Claim]:
    """The claims that these results say nothing about."""
    return [claim for claim in CLAIMS if find(claim, results) is None]


# --- Markdown -------------------------------------------------------------------------------------------------------


def write(benchmarks: Path, questions: Iterable[str]) -> None:
    """Put the block into the page above the folder `benchmarks`, between its marks; without marks the page stays."""
    page = benchmarks.parent / "README.md"
    if page.is_file():
        text = page.read_text()
        new = BLOCK.sub(lambda _: render(benchmarks, questions), text)
        if new != text:
            page.write_text(new)


def render(benchmarks: Path, questions: Iterable[str]) -> str:
    """The block as the newest results under `benchmarks` make it."""
    results = newest_results(benchmarks / "results", questions)
    return block(results, {name: f"{benchmarks.name}/{path}" for name, path in pictures(benchmarks, results).items()})


def block(results: Mapping[str, Json], drawn: Mapping[str, str]) -> str:
    """The marks and all between them. drawn: pictures' paths relative to the page, by question."""
    rows = [found for claim in CLAIMS if (found := find(claim, results))]
    parts = [*_headline(rows), *_losses(rows, results), *_shown(results, drawn)]
    return "\n".join([BEGIN, "", *parts, "", END])


def _headline(rows: Sequence[HeadlineRow]) -> Iterator[str]:
    if not rows:
        yield "No results yet: `toolhub bench all`."
        return
    yield from _table(
        ("what", "today", "toolhub", "times better", "command"),
        [
            (
                row.what,
                f"{quantity(row.today, row.claim.unit)}: {row.who}",
                quantity(row.ours, row.claim.unit),
                _times(row.gain),
                _command(row.result),
            )
            for row in rows
        ],
        "llrrl",
    )
    yield f"\n{_measured([row.result for row in rows])}"


def _measured(results: Sequence[Json]) -> str:
    """Where and when."""
    places = {
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB"
        for machine in (result["machine"] for result in results)
    }
    days = sorted({str(result["date"])[:10] for result in results})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"Measured {when} on {' and '.join(sorted(places))}; each command measures its row again."


def _losses(rows: Sequence[HeadlineRow], results: Mapping[str, Json]) -> Iterator[str]:
    """Everything that was less than hoped for, in any question."""
    worse = [
        (f"{row.what}, times better than {row.who}", f"{_times(row.gain)} ×", "at least 1 ×", row.result)
        for row in rows
        if row.is_worse
    ]
    targets = [
        (f"{name}: {target['claim']}", quantity(target["value"], target["unit"]), bound(target), result)
        for name, result in results.items()
        for target in result["targets"]
        if verdict(target) == "missed"
    ]
    if worse or targets:
        yield "\n**Where toolhub does not win**: what is below 1 in the table, and every target that was missed.\n"
        yield from _table(
            ("what", "measured", "wanted", "command"),
            [(what, value, wanted, _command(result)) for what, value, wanted, result in (*worse, *targets)],
            "lrrl",
        )


def _shown(results: Mapping[str, Json], drawn: Mapping[str, str]) -> Iterator[str]:
    for name in [name for name in _PICTURES if name in drawn][:_MOST_PICTURES]:
        yield f"\n![{name}: {results[name]['asks']}]({drawn[name]})"


def _times(gain: float) -> str:
    return f"{gain:.2f}" if gain < 10 else significant(gain)


def _command(result: Json) -> str:
    marks = ["noisy"] * result["noise"]["noisy"] + ["quick run"] * result["quick"]
    return f"`{result['command']}`" + (f" ({', '.join(marks)})" if marks else "")


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    """sides: `l` or `r` for each column."""
    for cells in (heading, ["---" if side == "l" else "---:" for side in sides], *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
