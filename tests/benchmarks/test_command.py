"""`toolhub bench` itself: what it lists, and what it says where a package is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import toolhub
from benchmarks import runner
from benchmarks.common.result import ROOT
from benchmarks.questions import BENCHMARKS, NEEDS, QUESTIONS
from benchmarks.report.pages import print_result
from toolhub.cli import bench
from toolhub.errors import ConfigError, MissingExtra


def test_without_a_name_it_lists_every_benchmark_on_one_line_with_its_question(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench.run(None, [])
    lines = capsys.readouterr().out.splitlines()
    for name, question in QUESTIONS.items():
        needs = f"  [{NEEDS[name]}]" if name in NEEDS else ""
        assert f"  {name:12} {question}{needs}" in lines
    assert any("'bench' extra" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "shown"), [(["--help"], "toolhub bench soak --help"), (["soak", "--help"], "--minutes M")]
)
def test_help_is_that_of_the_command_or_of_one_benchmark(arguments: list[str], shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolhub", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown in done.stdout


def test_the_list_names_the_benchmarks_that_there_are() -> None:
    assert list(QUESTIONS) == list(BENCHMARKS)
    assert list(QUESTIONS.values()) == [benchmark.asks for benchmark in BENCHMARKS.values()]


def test_the_list_needs_the_standard_library_only() -> None:
    code = "import sys; sys.path.insert(0, '.'); import benchmarks.questions; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"anyio", "psutil", "rich", "toolhub"} & set(done.stdout.split())


def test_a_package_that_one_benchmark_needs_is_named_in_one_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("benchmark", "searches"):
        monkeypatch.delitem(sys.modules, f"benchmarks.servers.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(SystemExit):
        runner.main(["servers"])
    said = capsys.readouterr().err
    assert "servers is left out: toolhub bench servers needs the 'bench' extra; install it with: pip install" in said
    assert "Traceback" not in said


def test_outside_a_checkout_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolhub, "__file__", str(tmp_path / "toolhub" / "__init__.py"))
    with pytest.raises(ConfigError, match="^toolhub bench works only in a source checkout"):
        bench.run("overhead", [])


def test_nothing_is_wrapped_when_the_output_is_piped(
    capsys: pytest.CaptureFixture[str], result: dict[str, Any]
) -> None:
    result["notes"] = ["A long note. " * 40]
    print_result(result, runner._console())
    assert result["notes"][0] in capsys.readouterr().out


def test_without_a_package_that_benchmarks_need_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "benchmarks.runner", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingExtra, match="toolhub bench overhead needs the 'bench' extra; install it with"):
        bench.run("overhead", [])
