"""Hubs in processes of their own: `with ServedHub(servers) as hub`.

`toolhub serve` is reached through a unix socket or, as `HttpHub`, as an MCP server over HTTP; so is fastmcp's proxy.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import psutil

from benchmarks.common.measure import tree
from benchmarks.common.result import ROOT, Json
from benchmarks.common.subprocess_worker import START_S, WorkerFailed
from benchmarks.common.worker_main import Act

# A hundred servers have to end; each step of the ladder has two seconds.
_CLOSE_S = 60.0
_LAST_WORDS = 500
# What `toolhub serve` says once it accepts connections, and how often that is looked for.
_MCP_FRONT = re.compile(r"MCP gateway +(http\S+)/mcp\n")
_LOOK_S = 0.02


class ServedHub:
    """A private hub. It ends, with all that it started, when this process closes its stdin or dies."""

    def __init__(
        self,
        servers: Mapping[str, Json],
        *,
        llm: Json | None = None,
        environment: Mapping[str, str] | None = None,
        **limits: int,
    ) -> None:
        """llm: the section `llm` of the config; the hub is then also a proxy of model servers.

        environment: variables beside our own.
        """
        self._environment = environment or {}
        self._document = {"servers": dict(servers), "limits": limits, **({"llm": llm} if llm else {})}
        self.left_behind = 0
        """How many processes of the hub were alive after it had ended."""

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory()
        self._home = Path(self._directory.name)
        config = self._home / "hub.json"
        config.write_text(json.dumps({"hub": {"state_dir": str(self._home)}, **self._document}))
        self._stderr = (self._home / "stderr").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "toolhub", "serve", "--config", str(config), *self._listen_options()],
            cwd=ROOT,
            env={
                **os.environ,
                **self._environment,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        if not self._wait_ready():
            last_words = self._said()[-_LAST_WORDS:]
            self.close()
            raise WorkerFailed(f"`toolhub serve` ended before it was ready: {last_words}")
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def socket(self) -> str:
        return str(self._home / "hub.sock")

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def _listen_options(self) -> list[str]:
        return ["--private", "--uds", self.socket]

    def _wait_ready(self) -> bool:
        assert self._process.stdout is not None
        return bool(self._process.stdout.readline())

    def _let_go(self) -> None:
        """Ask it to end. A private hub ends with its stdin."""

    def _said(self) -> str:
        # Open it by name: the open file shares its position with the hub, which writes there.
        return (self._home / "stderr").read_text()

    def close(self) -> None:
        """Let it end, then kill what is left. Harmless when repeated."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        if stdin.closed:
            return
        below = tree(self.pid)[1:]
        stdin.close()
        self._let_go()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            below = tree(self.pid)
        _, alive = psutil.wait_procs(below, timeout=2)
        self.left_behind = len(alive)
        for process in alive:
            process.kill()
        self._process.wait()
        stdout.close()
        self._stderr.close()
        self._directory.cleanup()

    def __exit__(self, *_: Any) -> None:
        self.close()


class HttpHub(ServedHub):
    """The same hub on TCP; `address` is its MCP endpoint, `url` what all its endpoints begin with."""

    @property
    def url(self) -> str:
        """Empty until it is announced."""
        found = _MCP_FRONT.search(self._said())
        return found[1] if found else ""

    @property
    def address(self) -> str:
        return f"{self.url}/mcp"

    def _listen_options(self) -> list[str]:
        return ["--port", "0"]

    def _wait_ready(self) -> bool:
        deadline = time.monotonic() + START_S
        while not self.url and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return bool(self.url)

    def _let_go(self) -> None:
        self._process.terminate()


@asynccontextmanager
async def open_fastmcp_proxy(entry: Json) -> AsyncIterator[Act]:
    """fastmcp's proxy of one server, by its documented way through `http_app()`; tells its address. A worker role.

    entry: the server in an `mcpServers` document.
    """
    from fastmcp.server import create_proxy

    async with served(create_proxy({"mcpServers": {"echo": entry}}).http_app()) as act:
        yield act


@asynccontextmanager
async def open_sdk_echo() -> AsyncIterator[Act]:
    """The echo server that is written with the SDK, over HTTP; tells its address. A worker role."""
    from benchmarks.common.mcp_servers.echo_sdk import server

    async with served(server.streamable_http_app()) as act:
        yield act


@asynccontextmanager
async def served(app: Any, path: str = "/mcp") -> AsyncIterator[Act]:
    """An ASGI application on loopback; tells its address, with this path."""
    import uvicorn

    # No line for every request, as `toolhub serve` writes none either.
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"

        async def act(_: Json) -> Json:
            return {"address": address}

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            yield act
            server.should_exit = True
