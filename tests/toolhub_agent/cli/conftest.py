"""A model server for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llm_stand_in.model_server import ModelServer, open_model_server

from tests.toolhub_agent.cli.run_stage import look_at_the_clock_then_answer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with open_model_server() as running:
        running.usual = look_at_the_clock_then_answer
        yield running
