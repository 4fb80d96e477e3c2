"""Fixtures of the tests with real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_processes import HubFactory, below


@pytest.fixture
def hubs(tmp_path: Path) -> HubFactory:
    return HubFactory(tmp_path / "state")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a test is about: when its hubs are closed, no process of theirs is there."""
    before = below(os.getpid())
    yield
    assert [process for process in below(os.getpid()) if process not in before] == []
