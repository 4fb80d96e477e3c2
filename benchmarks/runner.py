"""`toolhub bench`: run questions, keep their results as JSON and pictures, and make README.md from them.

toolhub bench NAME|all [--quick] [--out DIR] [--json]      python -m benchmarks.runner report
toolhub bench check [NAME ...] [--against DIR] [--strict]
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    check,
    density,
    idle,
    init,
    kv,
    loop,
    overhead,
    overload,
    plots,
    recover,
    report,
    sandbox,
    servers,
    storm,
    sweep,
    throughput,
)
from benchmarks.engine.install import EngineSetupError
from benchmarks.machine import NoiseWatch, describe, git_revision
from benchmarks.result import ROOT, Json, Question

QUESTIONS: dict[str, Question[Any]] = {
    module.QUESTION.name: module.QUESTION
    for module in (
        overhead,
        throughput,
        init,
        storm,
        density,
        overload,
        sweep,
        recover,
        idle,
        sandbox,
        servers,
        kv,
        loop,
    )
}
HERE = ROOT / "benchmarks"
_WIDTH = 160


def main(argv: Sequence[str] | None = None) -> None:
    """Run what the arguments say; see `--help`."""
    arguments = _parse(argv)
    if arguments.name == "check":
        has_held = check_ratios(arguments.questions, arguments.against)
        sys.exit(1 if arguments.strict and not has_held else 0)
    out = HERE if arguments.out is None else Path(arguments.out)
    if arguments.name == "report":
        draw_newest(out)
        write_readme(out)
        return
    names = list(QUESTIONS) if arguments.name == "all" else [arguments.name]
    for name in names:
        try:
            result = measure(QUESTIONS[name], quick=arguments.quick)
        except EngineSetupError as problem:
            if arguments.name != "all":
                sys.exit(f"{name}: {problem}")
            print(f"{name} is left out: {problem}", file=sys.stderr)
            continue
        if arguments.json:
            print(json.dumps(result, indent=1))
        else:
            report.print_result(result, _console())
        if arguments.out or not arguments.quick:
            save(result, out)
    if arguments.quick and not arguments.out:
        print("A quick run is not kept; name a directory with --out to keep it.", file=sys.stderr)


def _console() -> Console:
    """As wide as the tables need when nobody looks: a file or a pipe has no width."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def measure(question: Question[Any], *, quick: bool) -> Json:
    """Answer one question and return the result with everything that is needed to judge it."""
    began = datetime.now(UTC)
    with NoiseWatch() as watch:
        outcome = question.run(question.quick if quick else question.full)
        watch.unwaited_cpu_s = outcome.unwaited_cpu_s
    command = shlex.join(["toolhub", "bench", question.name] + ["--quick"] * quick)
    return {
        "question": question.name,
        "asks": question.asks,
        "date": began.isoformat(timespec="seconds"),
        "command": command,
        "quick": quick,
        "git": git_revision(),
        "machine": describe(),
        "noise": watch.findings,
        **outcome.to_json(),
    }


def save(result: Json, out: Path) -> Path:
    """Write the result and its picture under `out` and bring the page there up to date."""
    path = out / report.place(result).with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    picture = path.with_suffix(".png")
    if not plots.plot(result, picture):
        # What is there shows an earlier result of the same day.
        picture.unlink(missing_ok=True)
    write_readme(out)
    return path


def draw_newest(out: Path = HERE) -> None:
    """Draw each question's newest result under `out` again; without matplotlib, pictures stay as they are."""
    for result in report.newest_results(out / "results", QUESTIONS).values():
        plots.plot(result, out / report.place(result).with_suffix(".png"))


def check_ratios(names: Sequence[str], against: Path | None) -> bool:
    """Say which ratios have moved since the committed results; True when none has.

    names: questions; none: those in `against`, or else those that are soon measured.
    against: a directory with results to compare; None: measure now, quickly.
    """
    if against is None:
        return check.check(names or check.FAST, HERE / "results", _measure_quickly, print)
    found = check.results_in(against, list(names) or list(QUESTIONS))
    for name in names:
        if name not in found:
            print(f"{name}: no result in {against}")
    if not found:
        print(f"Nothing to compare in {against}.")
    return check.check(list(found), HERE / "results", found.get, print)


def _measure_quickly(name: str) -> Json | None:
    try:
        return measure(QUESTIONS[name], quick=True)
    except EngineSetupError as problem:
        print(f"{name} is left out: {problem}", file=sys.stderr)
        return None


def write_readme(out: Path = HERE) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(render(out))


def render(out: Path = HERE) -> str:
    """README.md as the results under `out` make it."""
    asked = {name: question.asks for name, question in QUESTIONS.items()}
    results = report.newest_results(out / "results", asked)
    return report.readme(results, asked, report.pictures(out, results))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_intermixed_args(argv)
    if unknown := [name for name in arguments.questions if name not in QUESTIONS]:
        parser.error(f"no such question: {', '.join(unknown)}")
    if arguments.name != "check" and (arguments.questions or arguments.against or arguments.strict):
        parser.error("several questions, --against and --strict go with `check` only")
    if arguments.name == "check" and (arguments.out or arguments.json):
        parser.error("`check` keeps nothing: --out and --json do not go with it")
    if arguments.against and not arguments.against.is_dir():
        parser.error(f"--against: no such directory: {arguments.against}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    asked = {name: question.asks for name, question in QUESTIONS.items()}
    asked |= {"all": "all of them", "report": "nothing new: only make pictures and README.md again from the results"}
    asked |= {"check": "have ratios moved since the committed results? A quick run of those named, or of some"}
    listing = "\n".join(f"  {name:10} {asks}" for name, asks in asked.items())
    parser = argparse.ArgumentParser(
        prog="toolhub bench",
        description="Measure toolhub on this machine beside what people use today.",
        epilog=f"questions:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=asked, metavar="NAME", help="a question, `all`, `report` or `check`")
    parser.add_argument(
        "--quick", action="store_true", help="a first look in seconds to minutes; not kept without --out"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where results/<date>/NAME.json, its picture and README.md go (default: benchmarks/)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of tables")
    checking = parser.add_argument_group("check", "Times are the machine's own; only ratios are compared.")
    checking.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"which to measure (default: {', '.join(check.FAST)})"
    )
    checking.add_argument("--against", type=Path, metavar="DIR", help="compare what a run with --out DIR left there")
    checking.add_argument(
        "--strict", action="store_true", help="exit with 1 when a ratio has moved; otherwise always 0"
    )
    return parser


if __name__ == "__main__":
    main()
