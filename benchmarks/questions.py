"""The benchmarks and the question that each one answers, in the order in which they run and are shown.

The list needs the standard library only, so that `toolhub bench` can show it where nothing else is installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.common.result import Benchmark

QUESTIONS = {
    "overhead": "What does one call cost?",
    "throughput": "How many calls a second?",
    "gateway": "What does an MCP gateway cost?",
    "proxy": "What does the LLM proxy add to the first byte?",
    "init": "How long until many tasks can work?",
    "storm": "How long until a whole sweep can work, and what does it take?",
    "density": "How many idle tasks does a machine hold?",
    "overload": "What does too much cost, and who pays?",
    "sweep": "Does a hub last a long sweep?",
    "soak": "Does a hub survive everything that goes wrong, at once and for long?",
    "recover": "What does a crash cost?",
    "idle": "What does an idle session cost?",
    "sandbox": "What does a place to run code cost?",
    "servers": "What do our own servers save?",
    "kv": "What does the prefix cache give an agent, with hints and without?",
    "loop": "What does the agent loop gain beside a plain one?",
    "overlap": "What does it give to begin tools before they are called?",
    "replay": "What does recording cost, how fast is a replay, and what do shared results save?",
    "mirothinker": "How much time do the tools add to a run of MiroThinker?",
    "task": "How long does a whole research task take?",
    "admission": "Does admission by the cache's tokens finish a sweep sooner?",
    "decode": "What does speculative decoding give an agent, and does it lose tool calls?",
}
NEEDS = {
    "sandbox": "extra data",
    "servers": "extras pages, browser",
    "kv": "make engine",
    "loop": "make engine",
    "mirothinker": "--checkout for the original agent",
    "task": "make engine",
    "admission": "make engine",
    "decode": "make engine",
}
"""What is needed beside the extra `bench`."""

# Packages of the checkout itself: if one of their modules cannot be imported, no extra helps.
_CHECKOUT = ("benchmarks", "testbed", "tests", "toolhub")


class _Benchmarks(Mapping[str, "Benchmark[Any]"]):
    """A benchmark is imported when it is looked up. Raises MissingExtra where a package that it needs is missing."""

    def __getitem__(self, name: str) -> Benchmark[Any]:
        if name not in QUESTIONS:
            raise KeyError(name)
        try:
            found: Benchmark[Any] = importlib.import_module(f"benchmarks.{name}.benchmark").BENCHMARK
        except ImportError as exc:
            raise missing_extra(name, exc) from exc
        return found

    def __contains__(self, name: object) -> bool:
        return name in QUESTIONS

    def __iter__(self) -> Iterator[str]:
        return iter(QUESTIONS)

    def __len__(self) -> int:
        return len(QUESTIONS)


BENCHMARKS = _Benchmarks()


def missing_extra(name: str, exc: ImportError) -> Exception:
    """Return the error that says how to install what `toolhub bench NAME` could not import."""
    from toolhub.errors import MissingExtra

    return exc if (exc.name or "").split(".")[0] in _CHECKOUT else MissingExtra("bench", f"toolhub bench {name}")
