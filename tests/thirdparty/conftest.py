"""Fixtures of the tests with other people's servers."""

from __future__ import annotations

import environment
import pytest
from real_process_fixtures import hubs, nothing_is_left

__all__ = ["hubs", "nothing_is_left"]


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Install the servers once; a run whose cache is warm pays milliseconds."""
    environment.ensure_all()
