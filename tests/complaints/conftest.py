"""Fixtures of the tests that complaints about other projects' tools became."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_server_process import HttpServer
from real_process_fixtures import hubs, nothing_is_left

__all__ = ["hubs", "nothing_is_left"]


@pytest.fixture
def http_server(nothing_is_left: None) -> Iterator[HttpServer]:
    """A server of the SDK over streamable HTTP, in a process of its own."""
    server = HttpServer("http")
    server.start()
    yield server
    server.stop()
