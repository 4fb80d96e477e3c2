"""Model servers for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llm_stand_in.model_server import ModelServer, open_model_server


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with open_model_server() as running:
        yield running


@pytest.fixture
def other_server() -> Iterator[ModelServer]:
    with open_model_server() as running:
        yield running
