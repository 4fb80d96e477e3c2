"""A stage for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_stand_in.model_server import ModelServer, open_model_server
from loop_stage import Stage


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with open_model_server() as running:
        yield running


@pytest.fixture
def stage(server: ModelServer, tmp_path: Path) -> Stage:
    return Stage(server, tmp_path)
