"""Fixtures of the tests with real processes."""

from chaos.conftest import hubs, nothing_is_left

__all__ = ["hubs", "nothing_is_left"]
