"""`toolhub bench`: run questions, keep their results as JSON and pictures, and make README.md from them.

toolhub bench NAME|all [--quick] [--out DIR] [--json] [--quiet-only]      python -m benchmarks.runner report
toolhub bench soak [--calls N] [--minutes M] [--seed S]
toolhub bench mirothinker [--checkout DIR]
toolhub bench check [NAME ...] [--against DIR] [--strict]
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from rich.console import Console

from benchmarks.common import machine
from benchmarks.common.machine import NoiseWatch, describe, git_revision
from benchmarks.common.result import ROOT, Benchmark, Json
from benchmarks.questions import BENCHMARKS, QUESTIONS
from benchmarks.report import check, headline, plots
from benchmarks.report import pages as report
from benchmarks.report.summary import Summary, duration, gaps
from testbed.engine.install import EngineSetupError
from testbed.third_party import SetupError
from toolhub.errors import MissingExtra

HERE = ROOT / "benchmarks"
Asking = Callable[[Benchmark[Any]], Json]
# Wider than any table, note or provenance.
_UNWRAPPED = 4000
# Packages that a question needs are missing; the message says how to install them.
_NOT_INSTALLED = (EngineSetupError, SetupError, MissingExtra)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what the arguments say; see `--help`."""
    arguments = _parse(argv)
    out = HERE if arguments.out is None else arguments.out
    if arguments.name == "report":
        draw_newest(out)
        write_readme(out)
        return
    if not arguments.against and not _is_quiet() and arguments.quiet_only:
        _say("Nothing was measured.")
        sys.exit(2)
    names = list(BENCHMARKS) if arguments.name == "all" else [arguments.name]
    summary, is_kept = Summary(), bool(arguments.out) or not arguments.quick
    with _interrupts(summary):
        if arguments.name == "check":
            has_held = check_ratios(arguments.questions, arguments.against, summary)
            sys.exit(1 if arguments.strict and not has_held else 0)
        ask = partial(measure, quick=arguments.quick, is_in_all=arguments.name == "all", options=_given(arguments))
        _ask_all(names, summary, ask=ask, as_json=arguments.json, out=out if is_kept else None)
    if len(names) > 1:
        for line in summary.lines(len(names), out / "README.md" if is_kept else None):
            _say(line)
    if not is_kept and summary.answered:
        _say("A quick run is not kept; name a directory with --out to keep it.")
    if code := summary.exit_code():
        sys.exit(code)


# --- asking ---------------------------------------------------------------------------------------------------------


def _ask_all(names: Sequence[str], summary: Summary, *, ask: Asking, as_json: bool, out: Path | None) -> None:
    """Ask one after the other. ask: measures a question. out: where results are kept."""
    last = report.newest_results(HERE / "results", names)

    def use(result: Json) -> None:
        if out == HERE and result["git"]["dirty"]:
            _say(f"{result['question']}: not kept, as the checkout has local changes; commit them, or use --out")
        elif out and result["is_look"]:
            _say(f"{result['question']}: a short run, not kept; for a whole one: toolhub bench {result['question']}")
        elif out:
            save(result, out)
        if as_json:
            print(json.dumps(result, indent=1), flush=True)
        else:
            report.print_result(result, _console())

    for number, name in enumerate(names, start=1):
        takes = f", about {duration(last[name]['noise']['wall_s'])} (last committed run)" if name in last else ""
        _say(f"{number} of {len(names)}: {name}{takes}")
        _ask(name, summary, ask=ask, use=use)


def _ask(name: str, summary: Summary, *, ask: Asking, use: Callable[[Json], None]) -> None:
    """Measure and hand over the result. A failure of one question does not affect the others."""
    try:
        summary.answered[name] = ask(BENCHMARKS[name])
        use(summary.answered[name])
    except _NOT_INSTALLED as problem:
        summary.left_out[name] = str(problem)
        _say(f"{name} is left out: {problem}")
    except Exception as problem:
        if summary.is_interrupted:
            # Ctrl-C reaches every process of the terminal, so a worker that failed here was ended by it.
            raise KeyboardInterrupt from problem
        summary.failed[name] = f"{type(problem).__name__}: {problem}"
        traceback.print_exc()


@contextmanager
def _interrupts(summary: Summary) -> Iterator[None]:
    """Ctrl-C within ends it cleanly, and the summary knows."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        summary.is_interrupted = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        _say("")  # behind the terminal's ^C
    finally:
        signal.signal(signal.SIGINT, before)


def _is_quiet() -> bool:
    """Look whether others use this machine, and say so."""
    others = machine.others_percent()
    if others <= machine.NOISY_PERCENT:
        return True
    _say(f"Others use {others:.0f} % of a core; results beside more than {machine.NOISY_PERCENT:.0f} % are marked.")
    return False


def _say(line: str) -> None:
    """Write a line to stderr; only results go to stdout."""
    print(line, file=sys.stderr, flush=True)


def _console() -> Console:
    """Return a console that wraps no lines in files and pipes."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNWRAPPED)


def measure(
    question: Benchmark[Any],
    *,
    quick: bool = False,
    is_in_all: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Json:
    """Answer one question and return the result with everything that is needed to judge it.

    is_in_all: as a part of `all`, which takes a short look instead of hours. options: changes of its scale.
    """
    began = datetime.now(UTC)
    is_look = is_in_all and not quick and question.in_all is not None
    scale: Any = question.quick if quick else question.in_all if is_look else question.full
    with NoiseWatch() as watch:
        outcome = question.run(replace(scale, **options) if options else scale)
        watch.unwaited_cpu_s = outcome.unwaited_cpu_s
    given = [word for name, value in options.items() for word in (f"--{name}", _written(value))]
    command = shlex.join(["toolhub", "bench", question.name, *["--quick"] * quick, *given])
    return {
        "question": question.name,
        "asks": question.asks,
        "date": began.isoformat(timespec="seconds"),
        "command": command,
        "quick": quick,
        "is_look": is_look,
        "git": git_revision(),
        "machine": describe(),
        "noise": watch.findings,
        **outcome.to_json(),
    }


def _written(value: object) -> str:
    """An option's value as the command line has it."""
    return str(value) if isinstance(value, str) else f"{value:.10g}"


def save(result: Json, out: Path) -> Path:
    """Write the result and its picture under `out` and bring the page there up to date."""
    path = out / report.place(result).with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    picture = path.with_suffix(".png")
    if not plots.plot(result, picture):
        # An earlier result of the same day may be there.
        picture.unlink(missing_ok=True)
    _write_alone(result, path)
    write_readme(out)
    return path


def _write_alone(result: Json, path: Path) -> None:
    """The page of one result, beside it."""
    picture = path.with_suffix(".png")
    path.with_suffix(".md").write_text(report.alone(result, picture.name if picture.is_file() else None))


def draw_newest(out: Path = HERE) -> None:
    """Show each question's newest result under `out` again; without matplotlib, pictures stay as they are."""
    for result in report.newest_results(out / "results", BENCHMARKS).values():
        path = out / report.place(result).with_suffix(".json")
        plots.plot(result, path.with_suffix(".png"))
        _write_alone(result, path)


def check_ratios(names: Sequence[str], against: Path | None, summary: Summary) -> bool:
    """Say which ratios have moved since the committed results; True when none has.

    names: questions; none: those in `against`, or else those that are soon measured.
    against: a directory with results to compare; None: measure now, quickly.
    """
    if against is None:
        return _check_now(names or check.FAST, summary)
    found = check.results_in(against, list(names) or list(BENCHMARKS))
    for name in names:
        if name not in found:
            print(f"{name}: no result in {against}")
    if not found:
        print(f"Nothing to compare in {against}.")
    return check.check(list(found), HERE / "results", found.get, print)


def _check_now(names: Sequence[str], summary: Summary) -> bool:
    def say_gaps(result: Json) -> None:
        for note in gaps(result):
            _say(f"{result['question']}: {note}")

    def measure_quickly(name: str) -> Json | None:
        _ask(name, summary, ask=partial(measure, quick=True), use=say_gaps)
        return summary.answered.get(name)

    # Print each line at once, so that a run that is cut off shows what it found.
    has_held = check.check(names, HERE / "results", measure_quickly, partial(print, flush=True))
    what = "no ratio moved" if has_held else "some ratios moved, see above"
    print(f"{len(summary.answered)} of {len(names)} questions measured; {what}")
    return has_held


def write_readme(out: Path = HERE) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text(render(out))
    if out.resolve() == HERE:
        headline.write(HERE, BENCHMARKS)


def render(out: Path = HERE) -> str:
    """README.md as the results under `out` make it."""
    results = report.newest_results(out / "results", QUESTIONS)
    return report.readme(results, QUESTIONS, headline.summary(results), report.pictures(out, results))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_intermixed_args(argv)
    if unknown := [name for name in arguments.questions if name not in BENCHMARKS]:
        parser.error(f"no such question: {', '.join(unknown)}")
    if arguments.name != "check" and (arguments.questions or arguments.against or arguments.strict):
        parser.error("several questions, --against and --strict go with `check` only")
    if given := _given(arguments):
        allowed = BENCHMARKS[arguments.name].options if arguments.name in BENCHMARKS else ()
        if refused := [f"--{name}" for name in given if name not in allowed]:
            parser.error(f"{', '.join(refused)} does not go with {arguments.name}")
    if arguments.name == "check" and (arguments.out or arguments.json):
        parser.error("`check` keeps nothing: --out and --json do not go with it")
    if arguments.against and not arguments.against.is_dir():
        parser.error(f"--against: no such directory: {arguments.against}")
    return arguments


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options of questions that the command line has."""
    values = {name: getattr(arguments, name) for name in ("calls", "minutes", "seed", "checkout")}
    return {name: value for name, value in values.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    asked = dict(QUESTIONS)
    asked |= {"all": "all of them", "report": "nothing new: only make pictures and README.md again from the results"}
    asked |= {"check": "have ratios moved since the committed results? A quick run of those named, or of some"}
    listing = "\n".join(f"  {name:12} {asks}" for name, asks in asked.items())
    parser = argparse.ArgumentParser(
        prog="toolhub bench",
        description="Measure toolhub on this machine beside what people use today.",
        epilog=f"benchmarks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=asked, metavar="NAME", help="a benchmark, `all`, `report` or `check`")
    parser.add_argument(
        "--quick", action="store_true", help="a first look in seconds to minutes; not kept without --out"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where results/<date>/NAME.json, its table, its picture and README.md go (default: benchmarks/)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of tables")
    parser.add_argument(
        "--quiet-only",
        action="store_true",
        help=f"measure nothing (exit status 2) while others use more than {machine.NOISY_PERCENT:.0f} %% of a core",
    )
    soaking = parser.add_argument_group("soak", "It ends after so many calls or minutes, whichever is first.")
    soaking.add_argument("--calls", type=int, metavar="N")
    soaking.add_argument("--minutes", type=float, metavar="M")
    soaking.add_argument("--seed", type=int, metavar="S", help="decides what fails, and in which order")
    original = parser.add_argument_group("mirothinker", "Without the original agent, a loop makes the same calls.")
    original.add_argument("--checkout", metavar="DIR", help="a MiroThinker with its environment (uv sync)")
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
