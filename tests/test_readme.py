"""What the README prints is run as it is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_stand_in.answers import said
from llm_stand_in.model_server import open_model_server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def block(first_line: str) -> str:
    return next(text for _, text in BLOCKS if text.startswith(first_line))


def shell_lines(containing: str) -> list[str]:
    lines = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    return [line for line in lines if containing in line]


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(ENVIRONMENT, "XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "hub.yaml").write_text(block("# hub.yaml"))
    return tmp_path


def test_the_config_of_a_sweep_serves_tasks_of_a_labelled_run(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(block("# sweep.yaml"))
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


@pytest.fixture
def served(folder: Path) -> Iterator[Path]:
    """The hub, started with the README's own line (and a free TCP port, for the machine that runs several tests)."""
    (line,) = shell_lines("toolhub serve")
    hub = subprocess.Popen(
        [*shlex.split(line), "--port", "0"], cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    assert hub.stderr is not None
    assert any("Ctrl-C stops" in text for text in iter(hub.stderr.readline, ""))
    yield folder
    hub.terminate()
    hub.stderr.close()
    assert hub.wait(timeout=10) == 0


def test_the_embedded_example_runs_as_printed(folder: Path) -> None:
    (folder / "embedded.py").write_text(block("# embedded.py"))
    printed = run(folder, sys.executable, "-W", "error", "embedded.py")
    assert '"timezone": "UTC"' in printed
    assert "convert_time" in printed


def test_the_example_of_sandboxes_alone_runs_as_printed(folder: Path) -> None:
    (folder / "sandboxes_alone.py").write_text(block("# sandboxes_alone.py"))
    assert run(folder, sys.executable, "-W", "error", "sandboxes_alone.py").split() == ["42", "None", "hi", "3"]


def test_the_client_example_runs_as_printed(served: Path) -> None:
    (served / "remote.py").write_text(block("# remote.py"))
    assert '"timezone": "UTC"' in run(served, sys.executable, "-W", "error", "remote.py")


def test_the_drop_in_example_runs_as_printed(folder: Path) -> None:
    (folder / "dropin.py").write_text(block("# miroflow.py"))
    assert '"timezone": "UTC"' in run(folder, sys.executable, "-W", "error", "dropin.py")


def test_the_shell_examples_run_as_printed(served: Path) -> None:
    (tools,) = shell_lines("toolhub tools")
    (call,) = shell_lines("toolhub call")
    (tasks,) = shell_lines("toolhub tasks")
    assert "get_current_time" in run(served, *shlex.split(tools))
    assert '"timezone": "UTC"' in run(served, *shlex.split(call))
    assert "no open tasks" in run(served, *shlex.split(tasks))


def test_the_dispatch_example_runs_as_printed(folder: Path) -> None:
    (folder / "dispatch.py").write_text(block("# dispatch.py"))
    assert run(folder, sys.executable, "-W", "error", "dispatch.py") == "['found otters']\n"


def test_the_agent_examples_run_as_printed(folder: Path) -> None:
    one, sweep = shell_lines("toolhub run")
    (folder / "tasks.jsonl").write_text('{"id": "a", "question": "A?"}\n')
    with open_model_server() as model:
        model.usual = lambda seen: said("It is \\boxed{noon}.")
        assert "noon" in run(folder, *shlex.split(one.replace("http://127.0.0.1:8000/v1", model.url)))
        told = run(folder, *shlex.split(sweep.replace("http://127.0.0.1:8000/v1", model.url)))
    assert "3: 3 answered" in told


def test_the_import_change_names_what_exists() -> None:
    (line,) = [line[1:] for _, text in BLOCKS for line in text.splitlines() if line.startswith("+from toolhub")]
    assert run(ROOT, sys.executable, "-c", line) == ""


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
