"""Fixtures of the tests with real processes."""

from real_process_fixtures import hubs, nothing_is_left

__all__ = ["hubs", "nothing_is_left"]
