"""`toolhub bench`: finds the benchmarks of the source checkout, lists them or runs them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import toolhub
from toolhub.errors import ConfigError, MissingExtra
from toolhub_runtime import install_command

# Packages of the checkout itself: if one of their modules cannot be imported, no extra helps.
_CHECKOUT = ("benchmarks", "testbed", "toolhub")


def run(name: str | None, arguments: list[str]) -> None:
    """Run one benchmark or all of them; without a name, list them.

    Raises ConfigError when this is not a source checkout, MissingExtra when a package that benchmarks need is missing.
    """
    root = Path(toolhub.__file__).resolve().parent.parent
    if not (root / "benchmarks" / "runner.py").exists():
        raise ConfigError(
            "the benchmarks are not part of the installed package; run `toolhub bench` in a source checkout"
        )
    sys.path.insert(0, str(root))
    if name is None:
        print(_listing(importlib.import_module("benchmarks.questions").QUESTIONS))
        return
    try:
        runner = importlib.import_module("benchmarks.runner")
    except ImportError as exc:
        if (exc.name or "").split(".")[0] in _CHECKOUT:
            raise
        raise MissingExtra("bench", f"toolhub bench {name} ({exc.name})") from exc
    runner.main([name, *arguments])


def _listing(questions: dict[str, str]) -> str:
    return "\n".join(
        [
            "Benchmarks, and the question that each one answers:",
            *(f"  {name:10} {question}" for name, question in questions.items()),
            "",
            "toolhub bench NAME [--quick]  runs one. --quick takes seconds to minutes; the result is not kept.",
            "toolhub bench all [--quick]   runs all of them.",
            "toolhub bench report          makes the pages and pictures again from the results that are kept.",
            "toolhub bench check           compares a quick run with the committed results.",
            "",
            f"They need the 'bench' extra: {install_command('bench')}",
            "kv, loop and task also need an inference engine: make engine",
        ]
    )
