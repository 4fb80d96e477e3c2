"""A stage for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_stand_in.model_server import open_model_server
from loop_stage import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with open_model_server() as server:
        yield Stage(server, tmp_path)
