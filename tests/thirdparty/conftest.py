"""Fixtures of the tests with other people's servers."""

from __future__ import annotations

import pytest
from real_process_fixtures import hubs, nothing_is_left

from testbed import third_party

__all__ = ["hubs", "nothing_is_left"]


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Install the servers once; a run whose cache is warm pays milliseconds."""
    third_party.ensure_all()
