"""The README: its code runs as printed, its links lead somewhere, and its first screen is short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from printed_page import ROOT, blocks_of
from served_hub import environment

README = (ROOT / "README.md").read_text()


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    (program,) = [block.text for block in blocks_of(README) if block.kind == "python"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment({"XDG_STATE_HOME": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


@pytest.mark.quick
def test_the_first_screen_has_the_code_and_the_numbers_in_40_lines() -> None:
    screen = README.splitlines()[:40]
    assert "asyncio.run(main())" in screen
    assert any("where toolhub does not win" in line for line in screen)  # below the table
    assert "make demo" in README.partition("```")[2].partition("```")[0]


@pytest.mark.quick
def test_every_number_of_the_table_names_the_command_that_measures_it() -> None:
    rows = re.findall(r"^\| (?!what|---).*\|$", README.partition("<!-- /headline -->")[0], re.MULTILINE)
    assert 3 <= len(rows) <= 5
    assert all(re.search(r"\| `toolhub bench \w+[^`]*`[^|]*\|$", row) for row in rows)


@pytest.mark.quick
def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test", "docs"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
