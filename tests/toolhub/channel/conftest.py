"""Fixtures of the tests with real servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from http_server_process import HttpServer, Serve
from real_process_fixtures import hubs, nothing_is_left

__all__ = ["hubs", "nothing_is_left"]


@pytest.fixture
def serve(nothing_is_left: None) -> Iterator[Serve]:
    """Start an HTTP server of the given transport; it ends with the test."""
    servers: list[HttpServer] = []

    def start(transport: str) -> HttpServer:
        servers.append(HttpServer(transport))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def closed_port() -> int:
    """A port of this machine that refuses connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
