"""The distribution has one name, which every text that tells how to install takes from `toolhub_runtime`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from toolhub_runtime import DISTRIBUTION, find_conflict, install_command

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
CODE = ("toolhub", "servers", "sandbox", "agent_loop", "benchmarks")
OTHER_PROJECT = re.compile(
    r"\btoolhub\[|\b(?:(?:pipx?|tool)\s+install|--from|--with)\s+(?:-\S+\s+)*['\"]?toolhub(?![-\w/.])"
)


def documents() -> list[Path]:
    """What people read: the project's pages and configs, but not what benchmarks wrote."""
    found = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
    for folder in (*CODE, "configs"):
        found += [path for ending in ("md", "yaml", "py") for path in (ROOT / folder).rglob(f"*.{ending}")]
    return [path for path in found if "results" not in path.parts]


def test_no_text_tells_to_install_the_other_project() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in documents()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OTHER_PROJECT.search(line)
    ]
    assert wrong == []


def test_code_takes_the_name_of_the_distribution_from_one_place() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for folder in CODE
        for path in (ROOT / folder).rglob("*.py")
        if DISTRIBUTION in path.read_text()
    ]
    assert wrong == []


def test_the_project_is_built_under_that_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == {"toolhub": "toolhub_runtime:main"}
    extras = project["optional-dependencies"]
    assert [spec for specs in extras.values() for spec in specs if re.match(r"toolhub\b(?!-)", spec)] == []


def test_an_install_command_can_be_pasted_into_a_shell() -> None:
    assert install_command() == "pip install toolhub-runtime"
    assert install_command("hub", "servers") == "pip install 'toolhub-runtime[hub,servers]'"
    assert install_command("hub", program="uv tool install") == "uv tool install 'toolhub-runtime[hub]'"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site-packages folder with our two import packages."""
    (tmp_path / "toolhub_runtime").mkdir()
    (tmp_path / "toolhub_runtime/__init__.py").write_text((ROOT / "toolhub_runtime/__init__.py").read_text())
    (tmp_path / "toolhub").mkdir()
    (tmp_path / "toolhub/__init__.py").touch()
    (tmp_path / "toolhub/cli.py").write_text("def main():\n    print('ours')\n")
    return tmp_path


def command(*search_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as its script does, in an interpreter that has only these folders."""
    start = f"import sys; sys.path[:0] = {[str(path) for path in search_path]}; import toolhub_runtime as t; t.main()"
    return subprocess.run([sys.executable, "-I", "-S", "-c", start], capture_output=True, text=True, timeout=60)


def test_the_command_runs_where_only_our_package_is_installed(site: Path) -> None:
    assert (command(site).stdout, command(site).returncode) == ("ours\n", 0)


def test_the_command_names_the_other_project_installed_beside_ours(site: Path) -> None:
    (site / "toolhub-0.1.0.dist-info").mkdir()
    done = command(site)
    assert done.returncode == 2
    assert "two distributions own the package `toolhub`" in done.stderr
    assert "pip uninstall --yes toolhub toolhub-runtime, then pip install 'toolhub-runtime[hub]'" in done.stderr


def test_the_command_names_a_package_that_shadows_ours(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    (other / "toolhub").mkdir(parents=True)
    (other / "toolhub/__init__.py").touch()
    done = command(other, site)
    assert done.returncode == 2
    assert f"`import toolhub` finds {other}/toolhub/__init__.py, not {site}/toolhub/__init__.py" in done.stderr
    assert "PYTHONPATH" in done.stderr


def test_the_command_says_when_files_of_our_package_are_gone(site: Path) -> None:
    (site / "toolhub/__init__.py").unlink()  # as after `pip uninstall toolhub`, which owned the same file
    done = command(site)
    assert done.returncode == 2
    assert "files of the package `toolhub` are missing" in done.stderr


def test_this_checkout_has_no_conflict_with_the_other_project() -> None:
    assert find_conflict(ROOT) == ""
