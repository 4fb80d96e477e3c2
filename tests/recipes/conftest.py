"""The folder and the programs of a user who follows a recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_environments import build_wheel, copied_environment
from llm_stand_in.model_server import ModelServer, open_model_server


@pytest.fixture(scope="session")
def hub_bin() -> Path:
    """The folder of `toolhub` and of the servers that come with it."""
    return Path(sys.executable).parent


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install toolhub-runtime` installs."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def openai_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with the OpenAI SDK, where recipes install the thin client."""
    with copied_environment("openai-agents", tmp_path_factory.mktemp("agents")) as copy:
        yield copy


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with open_model_server() as server:
        yield server
