"""Model servers for each test, and a stage with an agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_stand_in.model_server import ModelServer, open_model_server
from toolhub_command import Shell

from tests.toolhub_agent.loop_stage import LoopStage


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with open_model_server(cache_blocks=4096) as running:
        yield running


@pytest.fixture
def other_server() -> Iterator[ModelServer]:
    with open_model_server() as running:
        yield running


@pytest.fixture
def stage(server: ModelServer, tmp_path: Path) -> LoopStage:
    return LoopStage(server, tmp_path)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """The `toolhub` command in a folder without a config."""
    return Shell(tmp_path)
