"""What the how-tos print is run as it is printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_stand_in.answers import said
from llm_stand_in.model_server import open_model_server
from printed_page import ROOT, Block, blocks_of
from served_hub import environment

from toolhub import load_config

HOW_TO = {path.stem: blocks_of(path.read_text()) for path in (ROOT / "docs" / "howto").glob("*.md")}
AGENT = blocks_of((ROOT / "agent_loop" / "README.md").read_text())
MODEL = "http://127.0.0.1:8000/v1"


def file_in(blocks: list[Block], name: str) -> str:
    (text,) = [block.text for block in blocks if block.name == name]
    return text + "\n"


def line_in(page: str, containing: str) -> str:
    lines = [line for block in HOW_TO[page] if block.kind == "sh" for line in block.text.splitlines()]
    (line,) = [line for line in lines if containing in line]
    return line


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, env=_here(folder), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_file(folder: Path, blocks: list[Block], name: str) -> str:
    (folder / name).write_text(file_in(blocks, name))
    return run(folder, sys.executable, "-W", "error", name)


def _here(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return environment({"PATH": path, "XDG_STATE_HOME": str(folder / "state")})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hub.yaml").write_text(file_in(HOW_TO["use"], "hub.yaml"))
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[Path]:
    """The hub, started with the page's own line (and a free TCP port, for the machine that runs several tests)."""
    command = [*shlex.split(line_in("use", "toolhub serve")), "--port", "0"]
    hub = subprocess.Popen(command, cwd=folder, env=_here(folder), stderr=subprocess.PIPE, text=True)
    assert hub.stderr is not None
    assert any("Ctrl-C stops" in text for text in iter(hub.stderr.readline, ""))
    yield folder
    hub.terminate()
    hub.stderr.close()
    assert hub.wait(timeout=30) == 0


def test_the_embedded_example_runs_as_printed(folder: Path) -> None:
    printed = run_file(folder, HOW_TO["use"], "embedded.py")
    assert '"timezone": "UTC"' in printed
    assert "convert_time" in printed


@pytest.mark.slow
def test_the_client_example_runs_as_printed(served: Path) -> None:
    assert '"timezone": "UTC"' in run_file(served, HOW_TO["use"], "remote.py")


@pytest.mark.slow
def test_the_shell_examples_run_as_printed(served: Path) -> None:
    assert "get_current_time" in run(served, *shlex.split(line_in("use", "toolhub tools")))
    assert '"timezone": "UTC"' in run(served, *shlex.split(line_in("use", "toolhub call")))
    assert "no open tasks" in run(served, *shlex.split(line_in("use", "toolhub tasks")))


@pytest.mark.slow
def test_the_example_of_sandboxes_runs_as_printed(folder: Path) -> None:
    assert run_file(folder, HOW_TO["sandboxes"], "sandbox.py") == "42 3 b'...'\n"


def test_the_example_of_sandboxes_alone_runs_as_printed(folder: Path) -> None:
    assert run_file(folder, HOW_TO["sandboxes"], "sandboxes_alone.py").split() == ["42", "None", "hi", "3"]


@pytest.mark.parametrize(
    ("page", "name"), [("sandboxes", "profiles.yaml"), ("sweeps", "sweep.yaml"), ("kv-hints", "llm.yaml")]
)
def test_the_configs_of_the_pages_are_valid(folder: Path, page: str, name: str) -> None:
    (folder / name).write_text(file_in(HOW_TO[page], name))
    load_config(folder / name)


@pytest.mark.slow
def test_the_config_of_a_sweep_serves_tasks_of_a_labelled_run(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(file_in(HOW_TO["sweeps"], "sweep.yaml"))
    program = """
import asyncio
from toolhub import Hub, load_config

async def main():
    async with Hub(load_config("sweep.yaml")) as hub, hub.task("t1", run="nightly") as task:
        for server, tool in (("time", "get_current_time"), ("clock", "get_current_time")):
            print((await task.call(server, tool, {"timezone": "UTC"})).is_error)

asyncio.run(main())
"""
    assert run(folder, sys.executable, "-c", program).split() == ["False", "False"]


@pytest.mark.slow
def test_the_drop_in_example_runs_as_printed(folder: Path) -> None:
    assert '"timezone": "UTC"' in run_file(folder, HOW_TO["miroflow"], "miroflow.py")


def test_the_import_change_names_what_exists() -> None:
    lines = [line for block in HOW_TO["miroflow"] for line in block.text.splitlines()]
    (line,) = [line[1:] for line in lines if line.startswith("+from toolhub")]
    assert run(ROOT, sys.executable, "-c", line) == ""


def test_the_dispatch_example_runs_as_printed(folder: Path) -> None:
    assert run_file(folder, AGENT, "dispatch.py") == "['found otters']\n"


@pytest.mark.slow
def test_the_agent_examples_run_as_printed(folder: Path) -> None:
    one, sweep = line_in("kv-hints", "toolhub run"), line_in("sweeps", "toolhub run")
    (folder / "tasks.jsonl").write_text('{"id": "a", "question": "A?"}\n')
    with open_model_server() as model:
        model.usual = lambda seen: said("It is \\boxed{noon}.")
        assert "noon" in run(folder, *shlex.split(one.replace(MODEL, model.url)))
        told = run(folder, *shlex.split(sweep.replace(MODEL, model.url)))
    assert "3: 3 answered" in told


def test_the_service_starts_the_hub_with_options_that_exist(folder: Path) -> None:
    (unit,) = [block.text for block in HOW_TO["deploy"] if block.kind == "ini"]
    (command,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    options = [word for word in command.split() if word.startswith("--")]
    told = run(folder, "toolhub", "serve", "--help")
    assert options and all(option in told for option in options)
