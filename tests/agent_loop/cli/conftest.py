"""A model server for each test, and a folder without a config to run the command in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_stand_in.model_server import ModelServer, open_model_server
from toolhub_command import Shell


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with open_model_server(cache_blocks=4096) as running:
        yield running


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
