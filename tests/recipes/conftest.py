"""The folder and the programs of a user who follows a recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_environments import build_wheel
from llm_stand_in.model_server import ModelServer, open_model_server


@pytest.fixture(scope="session")
def hub_bin() -> Path:
    """The folder of `toolhub` and of the servers that come with it."""
    return Path(sys.executable).parent


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install toolhub-runtime` installs."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with open_model_server() as server:
        yield server
