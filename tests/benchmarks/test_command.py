"""`toolhub bench` itself: what it lists, and what it says where a package is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.common.result import ROOT
from benchmarks.questions import QUESTIONS
from benchmarks.registry import BENCHMARKS
from toolhub.cli import bench
from toolhub.errors import MissingExtra


def test_without_a_name_it_lists_every_benchmark_on_one_line_with_its_question(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench.run(None, [])
    lines = capsys.readouterr().out.splitlines()
    for name, question in QUESTIONS.items():
        assert f"  {name:10} {question}" in lines
    assert any("'bench' extra" in line for line in lines)


def test_the_list_names_the_benchmarks_that_there_are() -> None:
    assert list(QUESTIONS) == list(BENCHMARKS)
    assert list(QUESTIONS.values()) == [benchmark.asks for benchmark in BENCHMARKS.values()]


def test_the_list_needs_the_standard_library_only() -> None:
    code = "import sys; sys.path.insert(0, '.'); import benchmarks.questions; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"anyio", "psutil", "rich", "toolhub"} & set(done.stdout.split())


def test_without_a_package_that_benchmarks_need_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "benchmarks.runner", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingExtra, match="toolhub bench overhead .* needs the 'bench' extra; install it with"):
        bench.run("overhead", [])
