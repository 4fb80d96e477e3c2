"""Finding a program that can run a hub."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from miroflow_agents import CHECKOUT

from toolhub import HubClosed
from toolhub.miroflow.hub_command import HUB_NEEDS, environment_for, hub_commands

pytestmark = pytest.mark.quick


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `toolhub` on PATH that belongs to another environment."""
    script = tmp_path / "toolhub"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return script


@pytest.fixture
def without_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the environment of an agent that pins mcp<2."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.27.0")


def test_a_command_that_was_asked_for_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLHUB_COMMAND", "uvx --from 'toolhub-runtime[hub]' toolhub")
    assert hub_commands() == [("uvx", "--from", "toolhub-runtime[hub]", "toolhub")]
    assert hub_commands("mine -x") == [("mine", "-x")]
    assert hub_commands(["a b", "c"]) == [("a b", "c")]


def test_the_program_on_the_path_comes_before_our_own_interpreter(elsewhere: Path) -> None:
    assert hub_commands() == [(str(elsewhere),), (sys.executable, "-m", "toolhub")]


def test_beside_an_old_sdk_only_another_environment_can_run_a_hub(elsewhere: Path, without_sdk: None) -> None:
    assert hub_commands() == [(str(elsewhere),)]


def test_without_any_the_error_says_how_to_get_one(without_sdk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(HubClosed, match=r"uv tool install 'toolhub-runtime\[hub\]'.*set TOOLHUB_COMMAND"):
        hub_commands()


def test_another_interpreter_does_not_get_our_search_path() -> None:
    ours = {"PYTHONPATH": "x", "TOOLHUB_TOKEN": "t", "HOME": "/h"}
    assert environment_for(("/opt/toolhub/bin/toolhub",), ours) == {"HOME": "/h"}
    assert environment_for((sys.executable, "-m", "toolhub"), ours) == {"PYTHONPATH": "x", "HOME": "/h"}


def test_a_client_without_a_hub_on_the_path_does_not_hide_the_hub_behind_it(
    elsewhere: Path, without_sdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(sys.executable).parent  # has a `toolhub` that cannot serve here
    monkeypatch.setenv("PATH", f"{own}:{elsewhere.parent}")
    assert hub_commands() == [(str(elsewhere),)]


def test_the_names_of_what_a_hub_needs_are_those_of_its_extra() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    packages = {re.match(r"[\w-]+", spec)[0] for spec in project["optional-dependencies"]["hub"]}
    distributions = importlib.metadata.packages_distributions()
    of_modules = {name.lower().replace("_", "-") for module in HUB_NEEDS for name in distributions[module]}
    assert {"mcp", "starlette", "uvicorn", "httptools"} <= of_modules & packages
    assert packages - of_modules <= {"anyio", "uvloop"}  # that every environment has, and that a hub can do without
