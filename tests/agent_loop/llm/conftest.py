"""A model server for each test, and a client with short deadlines."""

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


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Pauses between attempts are the matter of the tests of `retry`; all others need not wait for chance."""
    if "llm_retry" not in request.path.name:
        monkeypatch.setattr("toolhub_agent.llm.errors.FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr("toolhub_agent.llm.errors.JITTER_S", 0.001)
