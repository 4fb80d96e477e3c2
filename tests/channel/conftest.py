"""Fixtures of the tests with real servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chaos.conftest import hubs, nothing_is_left
from chaos.processes import FIXTURES

from toolhub import ServerSpec

__all__ = ["HttpServer", "Serve", "closed_port", "hubs", "nothing_is_left", "serve"]


class HttpServer:
    """tests/fixtures/http_server.py as a process that can be killed, frozen, and started again on its port."""

    def __init__(self, transport: str) -> None:
        self.transport = transport
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, str(FIXTURES / "http_server.py"), "--transport", self.transport]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(10)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def freeze(self) -> None:
        """Keep its connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{'mcp' if self.transport == 'http' else 'sse'}"

    def spec(self, **fields: Any) -> ServerSpec:
        return ServerSpec(**{"name": "remote", "url": self.url, "stateful": False} | fields)


Serve = Callable[[str], HttpServer]


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
