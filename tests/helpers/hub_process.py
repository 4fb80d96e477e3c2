"""Hubs as processes of their own, the way users run them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from forked_toolhub import ForkedProcess, piped_toolhub

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class HubProcess:
    """A running hub and where it listens."""

    url: str
    child: ForkedProcess | subprocess.Popen[bytes]

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(30)

    def freeze(self) -> None:
        """Keep its connections and answer nothing."""
        self.child.send_signal(signal.SIGSTOP)
        while psutil.Process(self.child.pid).status() != psutil.STATUS_STOPPED:
            os.sched_yield()


@contextmanager
def private_hub(directory: Path) -> Iterator[HubProcess]:
    """A hub on a unix socket; it ends with the context, however it is left."""
    path = directory / "hub.sock"
    arguments = ["serve", "--private", "--uds", str(path)]
    with piped_toolhub(arguments, env=os.environ, cwd=CHECKOUT) as child, _ended(child):
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield HubProcess(f"unix://{path}", child)


@contextmanager
def tcp_hub(config: Path, token: str) -> Iterator[HubProcess]:
    """A hub on a TCP port with a token."""
    config.write_text(f"servers:\n  echo:\n    command: {sys.executable}\n    args: [{FIXTURES / 'echo.py'}]\n")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "toolhub",
        "serve",
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--token",
        token,
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as child, _ended(child):
        assert child.stderr is not None
        while b"Ctrl-C" not in child.stderr.readline():
            assert child.poll() is None
        yield HubProcess(f"http://127.0.0.1:{port}", child)


@contextmanager
def _ended(child: ForkedProcess | subprocess.Popen[bytes]) -> Iterator[None]:
    """End a hub with the context, also a frozen one."""
    try:
        yield
    finally:
        child.send_signal(signal.SIGCONT)
        child.terminate()
        child.wait(30)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def echo_server(**env: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", str(FIXTURES / "echo.py")], "env": env}


def run_script(script: str, *args: str, **environ: str) -> str:
    """Run Python code in a process of its own, warnings as errors, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=CHECKOUT,
        env=os.environ | environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
