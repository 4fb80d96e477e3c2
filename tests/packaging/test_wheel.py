"""The wheel as users install it: what is in it, and that the base install is the thin client."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"toolhub", "toolhub_runtime", "toolhub_servers", "toolhub_sandbox", "toolhub_agent"}


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


def test_the_page_of_errors_comes_with_the_command_that_prints_it(wheel: Path) -> None:
    page = zipfile.ZipFile(wheel).read("toolhub/cli/errors.md")
    assert page == (ROOT / "docs" / "errors.md").read_bytes()


def test_the_base_install_is_the_thin_client_and_brings_three_small_packages(installed: Path) -> None:
    listed = json.loads(run(installed, "-m", "pip", "list", "--format=json").stdout)
    names = {entry["name"].replace("_", "-") for entry in listed} - {"pip", "setuptools"}
    # What anyio itself brings: idna, and typing-extensions and sniffio in some versions.
    assert names - {"idna", "typing-extensions", "sniffio"} == {"toolhub-runtime", "anyio", "h11"}
    program = "import toolhub, toolhub.miroflow, toolhub_agent; toolhub.connect; toolhub_agent.Dispatcher"
    assert run(installed, "-W", "error", "-c", program).stderr == ""


def test_every_command_says_in_one_line_what_the_thin_client_lacks(installed: Path) -> None:
    script = str(installed.parent / "toolhub")
    for command in ([script, "serve"], [script, "--help"], [str(installed), "-m", "toolhub", "doctor"]):
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.endswith("install it with: pip install 'toolhub-runtime[hub]'")


def test_what_only_the_hub_has_names_its_extra(installed: Path) -> None:
    for name in ("Hub", "load_config"):
        done = run(installed, "-c", f"import toolhub; toolhub.{name}", check=False)
        assert done.stderr.splitlines()[-1].endswith("install it with: pip install 'toolhub-runtime[hub]'")


def test_a_manager_without_a_hub_names_both_ways_out(installed: Path) -> None:
    program = """
import asyncio
from toolhub.miroflow import ToolManager
manager = ToolManager([{"name": "a", "params": {"command": "true"}}])
print(asyncio.run(manager.execute_tool_call("a", "b", {})))
"""
    done = subprocess.run(
        [installed, "-c", program], capture_output=True, text=True, cwd="/", env={"PATH": str(installed.parent)}
    )
    told = done.stdout + done.stderr
    assert "uv tool install 'toolhub-runtime[hub]'" in told
    assert "TOOLHUB_COMMAND" in told
    assert "TOOLHUB_URL" in told
