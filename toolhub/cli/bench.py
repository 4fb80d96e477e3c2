"""`toolhub bench`: finds the benchmarks of the source checkout, lists them or runs them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import toolhub
from toolhub.errors import ConfigError
from toolhub_runtime import install_command


def run(name: str | None, arguments: list[str]) -> None:
    """Run one benchmark or all of them; without a name, list them.

    Raises ConfigError when this is not a source checkout, MissingExtra when a package that benchmarks need is missing.
    """
    root = Path(toolhub.__file__).resolve().parent.parent
    if not (root / "benchmarks" / "runner.py").exists():
        raise ConfigError(
            "toolhub bench works only in a source checkout, because the installed package has no benchmarks. "
            "In the checkout, run: make venv && .venv/bin/toolhub bench"
        )
    sys.path.insert(0, str(root))
    questions = importlib.import_module("benchmarks.questions")
    if name is None:
        print(_listing(questions.QUESTIONS, questions.NEEDS))
        return
    try:
        runner = importlib.import_module("benchmarks.runner")
    except ImportError as exc:
        raise questions.missing_extra(name, exc) from exc
    runner.main([name, *arguments])


def _listing(questions: dict[str, str], needs: dict[str, str]) -> str:
    lines = [
        f"  {name:12} {asks}" + (f"  [{needs[name]}]" if name in needs else "") for name, asks in questions.items()
    ]
    return "\n".join(
        [
            "Benchmarks, and the question that each one answers:",
            *lines,
            "",
            f"All need the 'bench' extra: {install_command('bench')}",
            "In brackets is what a benchmark needs beside it; it says what it leaves out without that.",
            "",
            "toolhub bench NAME [--quick]  runs one. --quick takes seconds to minutes and keeps no result.",
            "toolhub bench all [--quick]   runs all of them.",
            "toolhub bench check           compares a quick run with the committed results.",
            "toolhub bench report          makes the pages and pictures of the kept results again.",
        ]
    )
