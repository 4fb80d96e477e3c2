"""From JSON results to tables on the terminal and to README.md. Pure: the same results give the same text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.result import Json

_INTRO = """\
# Benchmarks

<!-- Generated from results/ by `python -m benchmarks.runner report`; do not edit. -->

Each benchmark answers one question. It measures toolhub and what people use today in turns, on the same machine.
`toolhub bench` lists the questions, `toolhub bench NAME` answers one (`--quick` for a first look), and
`toolhub bench all` answers all of them. Every number below is from the newest file of its question in `results/`.
"""


def newest_results(directory: Path, names: Iterable[str]) -> dict[str, Json]:
    """Return each question's newest result in ``directory/<date>/<name>.json``; one without any is left out."""
    found: dict[str, Json] = {}
    for name in names:
        results = [json.loads(path.read_text()) for path in directory.glob(f"*/{name}.json")]
        if results:
            found[name] = max(results, key=lambda result: str(result["date"]))
    return found


def place(result: Json) -> Path:
    """Where the result is kept, without a suffix, relative to the page: ``results/<date>/<name>``."""
    return Path("results") / str(result["date"])[:10] / str(result["question"])


def pictures(out: Path, results: Mapping[str, Json]) -> dict[str, str]:
    """The pictures that lie beside these results, by question: paths relative to the page in `out`."""
    paths = {name: place(result).with_suffix(".png") for name, result in results.items()}
    return {name: path.as_posix() for name, path in paths.items() if (out / path).is_file()}


def readme(results: Mapping[str, Json], questions: Mapping[str, str], summary: str, pictures: Mapping[str, str]) -> str:
    """The whole page. questions: what each asks, by name, in the order of the page. pictures: paths, by name."""
    sections = [
        _section(name, asks, results[name], pictures.get(name)) if name in results else _missing(name, asks)
        for name, asks in questions.items()
    ]
    return "\n".join([_INTRO, summary, *sections])


def alone(result: Json, picture: str | None) -> str:
    """One result as a page of its own. picture: its path relative to that page."""
    return _section(str(result["question"]), str(result["asks"]), result, picture).removeprefix("#")


def _heading(name: str, asks: str) -> str:
    return f"## {name}: {asks}\n"


def _missing(name: str, asks: str) -> str:
    return f"{_heading(name, asks)}\nNo results yet: `toolhub bench {name}`.\n"


def _section(name: str, asks: str, result: Json, picture: str | None) -> str:
    parts = [_heading(name, asks), provenance(result), "", targets_sentence(result["targets"]), ""]
    parts += [f"![{name}: {asks}]({picture})", ""] if picture else []
    for table in result["tables"]:
        parts += [f"**{table['title']}**", "", markdown(table), ""]
    parts += [f"- {note}" for note in result["notes"]] + [""] * bool(result["notes"])
    return "\n".join(parts)


def provenance(result: Json) -> str:
    """When, how and where: one paragraph."""
    machine, noise, git = result["machine"], result["noise"], result["git"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    revision = (git["revision"][:12] or "no git") + (" with local changes" if git["dirty"] else "")
    load = f"load {noise['load_before'][0]:.2f} before and {noise['load_after'][0]:.2f} after"
    others = f"other processes used {noise['others_cpu_percent']:.0f} % of a core"
    quiet = "**noisy**: " if noise["noisy"] else ""
    quick = " **A quick run: indicative only.**" if result["quick"] else ""
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    return (
        f"{result['date']}, `{result['command']}`, revision {revision}, {noise['wall_s']:.0f} s. "
        f"{machine['cores']} cores of {machine['cpu']}, {memory}, {machine['kernel']}, "
        f"Python {machine['python']}; {packages}. {quiet}{load}, {others}.{quick}"
    )


def targets_sentence(targets: list[Json]) -> str:
    """One honest sentence: what was met, what was missed, what this run cannot say."""
    if not targets:
        return "No targets."
    verdicts: dict[str, list[str]] = {"met": [], "missed": [], "not measured": []}
    for target in targets:
        verdicts[verdict(target)].append(_spoken(target))
    return "Targets " + "; ".join(f"**{word}**: {', '.join(them)}" for word, them in verdicts.items() if them) + "."


def verdict(target: Json) -> str:
    value, limit = target["value"], target["limit"]
    if value is None or math.isnan(value):
        return "not measured"
    return "met" if (value <= limit if target["at_most"] else value >= limit) else "missed"


def _spoken(target: Json) -> str:
    value = "" if verdict(target) == "not measured" else f" {quantity(target['value'], target['unit'])}"
    return f"{target['claim']}{value} ({bound(target)})"


def bound(target: Json) -> str:
    """What the target wants, such as "at most 1.2 ×"."""
    return f"{'at most' if target['at_most'] else 'at least'} {quantity(target['limit'], target['unit'])}"


def quantity(value: float, unit: str) -> str:
    return f"{significant(value)} {unit}" if unit else significant(value)


def significant(value: float) -> str:
    """Three digits, or all of them before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def shown(value: Any, digits: int) -> str:
    """One cell."""
    if value is None or isinstance(value, float) and math.isnan(value):
        return "-"
    return value if isinstance(value, str) else f"{value:,.{digits}f}"


def markdown(table: Json) -> str:
    columns = table["columns"]
    lines = [
        [column["label"] for column in columns],
        ["---" if index == 0 else "---:" for index in range(len(columns))],
        *([shown(row.get(column["key"]), column["digits"]) for column in columns] for row in table["rows"]),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def print_result(result: Json, console: Console) -> None:
    """The tables and the verdict for a terminal."""
    for table in result["tables"]:
        shape = Table(title=f"{result['question']}: {table['title']}", title_justify="left")
        for index, column in enumerate(table["columns"]):
            shape.add_column(column["label"], justify="left" if index == 0 else "right")
        for row in table["rows"]:
            shape.add_row(*(shown(row.get(column["key"]), column["digits"]) for column in table["columns"]))
        console.print(shape)
    for line in (targets_sentence(result["targets"]), provenance(result), *result["notes"]):
        console.print(line, markup=False)
    console.print()
