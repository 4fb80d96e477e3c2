"""`toolhub bench`: run questions, keep their results as JSON, and make README.md from them.

toolhub bench NAME|all [--quick] [--out DIR] [--json]      python -m benchmarks.runner report
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
    density,
    idle,
    init,
    kv,
    loop,
    overhead,
    overload,
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
    arguments = _parser().parse_args(argv)
    out = HERE if arguments.out is None else Path(arguments.out)
    if arguments.name == "report":
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
    """Write the result under `out` and bring the page there up to date."""
    path: Path = out / "results" / result["date"][:10] / f"{result['question']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    write_readme(out)
    return path


def write_readme(out: Path = HERE) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(render(out))


def render(out: Path = HERE) -> str:
    """README.md as the results under `out` make it."""
    asked = {name: question.asks for name, question in QUESTIONS.items()}
    return report.readme(report.newest_results(out / "results", asked), asked)


def _parser() -> argparse.ArgumentParser:
    asked = {name: question.asks for name, question in QUESTIONS.items()}
    asked |= {"all": "all of them", "report": "nothing new: only make README.md again from the results"}
    listing = "\n".join(f"  {name:10} {asks}" for name, asks in asked.items())
    parser = argparse.ArgumentParser(
        prog="toolhub bench",
        description="Measure toolhub on this machine beside what people use today.",
        epilog=f"questions:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", choices=[*QUESTIONS, "all", "report"], metavar="NAME", help="a question, `all` or `report`"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a first look in seconds to minutes; not kept without --out"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where results/<date>/NAME.json and README.md go (default: benchmarks/)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of tables")
    return parser


if __name__ == "__main__":
    main()
