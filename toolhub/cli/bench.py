"""`toolhub bench`: finds the benchmarks of the source checkout and runs them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import toolhub
from toolhub.errors import ConfigError


def run(name: str, arguments: list[str]) -> None:
    """Run one benchmark, or all. Raises ConfigError when this is not a source checkout."""
    root = Path(toolhub.__file__).resolve().parent.parent
    if not (root / "benchmarks" / "runner.py").exists():
        raise ConfigError(
            "the benchmarks are not part of the installed package; run this in a source checkout (make bench)"
        )
    sys.path.insert(0, str(root))
    importlib.import_module("benchmarks.runner").main([name, *arguments])
