"""The wheel as users install it: what is in it, and that the base install is a thin client."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"toolhub", "toolhub_runtime", "toolhub_servers", "toolhub_sandbox", "toolhub_agent"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
        text=True,
    )
    return next(out.glob("toolhub_runtime-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the base install."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    return python


def run(python: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], check=check, capture_output=True, text=True, cwd="/")


def test_the_wheel_has_exactly_our_packages_at_its_top(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == TOP_LEVEL


def test_every_package_is_typed(wheel: Path) -> None:
    assert {f"{name}/py.typed" for name in TOP_LEVEL} <= set(zipfile.ZipFile(wheel).namelist())


def test_the_included_replay_comes_with_its_log_and_documents(wheel: Path) -> None:
    folder = Path("toolhub_agent", "replay", "demo")
    inside = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    documents = {Path(name.name) for name in (ROOT / "agent_loop" / folder / "documents").iterdir()}
    assert {folder / "trajectory.jsonl", *(folder / "documents" / name for name in documents)} <= inside
    assert len(documents) == 6


def test_the_base_install_neither_has_nor_imports_mcp(installed: Path) -> None:
    program = (
        "import sys, toolhub, toolhub.miroflow, toolhub.cli.app; toolhub.connect;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'mcp', 'mcp_types', 'starlette', 'uvicorn'}))"
    )
    assert run(installed, "-W", "error", "-c", program).stdout.strip() == "[]"
    assert run(installed, "-c", "import mcp", check=False).returncode != 0


def test_a_command_whose_extra_is_missing_says_which_to_install(installed: Path) -> None:
    for command in (["doctor"], ["serve"], ["demo"], ["demo", "--replay"], ["stdio"]):
        done = run(installed, "-m", "toolhub.cli", *command, check=False)
        assert done.returncode == 2
        assert "pip install 'toolhub-runtime[hub" in done.stderr
        assert "Traceback" not in done.stderr


def test_the_embedded_hub_names_its_extra_when_it_is_missing(installed: Path) -> None:
    done = run(installed, "-c", "import toolhub; toolhub.Hub", check=False)
    assert "pip install 'toolhub-runtime[hub]'" in done.stderr


def test_the_help_works_without_any_extra(installed: Path) -> None:
    for arguments in (["--help"], ["call", "--help"], ["serve", "--help"]):
        assert "Usage" in run(installed, "-m", "toolhub.cli", *arguments).stdout
