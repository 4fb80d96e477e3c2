"""Retries without pauses."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Only the tests of retries wait between attempts."""
    if "llm_retry" not in request.path.name:
        monkeypatch.setattr("toolhub_agent.llm.errors.FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr("toolhub_agent.llm.errors.JITTER_S", 0.001)
