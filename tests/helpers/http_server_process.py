"""An MCP server over HTTP as a process that can be killed, frozen and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from real_processes import FIXTURES

from toolhub import ServerSpec


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
            self._process.wait(30)
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
        given: dict[str, Any] = {"name": "remote", "url": self.url, "stateful": False}
        return ServerSpec(**given | fields)


Serve = Callable[[str], HttpServer]
