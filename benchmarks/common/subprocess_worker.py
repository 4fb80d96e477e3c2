"""Starts a worker process, sends it requests, and ends it with everything that it started."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from typing import Any, Self

import psutil

from benchmarks.common.measure import tree
from benchmarks.common.result import ROOT, Json

# Imports and the start of a server on a busy two-core machine.
START_S = 60.0
# A hundred servers of the SDK need some 100 ms of CPU each to exit.
CLOSE_S = 60.0


class WorkerFailed(RuntimeError):
    """A worker did not start or ended early; the message has its last line on stderr."""


def _is_running(process: psutil.Process) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Worker:
    """One worker process:

    `with Worker("benchmarks.common.call_load:open_load", {...}) as worker: worker.ask({...})`.
    """

    def __init__(self, role: str, arguments: Json, *, python: str = sys.executable, uvloop: bool = False) -> None:
        command = [python, "-m", "benchmarks.common.worker_main", role, json.dumps(arguments)]
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command + ["--uvloop"] * uvloop,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            process_group=0,  # a terminal's Ctrl-C reaches only the runner, which ends its workers itself
        )
        self.left_behind = 0
        """How many of its processes were alive after it had closed."""
        self._is_ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until the role is open. Raises WorkerFailed."""
        if not self._is_ready:
            self._read(START_S)
            self._is_ready = True

    def ask(self, request: Json, *, within: float = 120.0) -> Json:
        """Send one request and return its answer. Raises WorkerFailed, also after `within` seconds."""
        self.wait_ready()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None
        return self._read(within)

    def _read(self, within: float) -> Json:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], within)[0]:
            raise WorkerFailed(f"no answer within {within:g} s")
        line = stdout.readline()
        if not line:
            raise WorkerFailed(self._last_words())
        answer: Json = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._process.wait(CLOSE_S)
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").split("\n")
        named = [line.strip(" |") for line in lines if line.strip(" |+-")]
        return named[-1] if named else f"ended with {self._process.returncode}"

    def close(self) -> None:
        """Let it close what it holds, then kill what is left. Harmless when repeated."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        below = tree(self.pid)[1:]
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            below = tree(self.pid)
        _, alive = psutil.wait_procs(below, timeout=1)
        self.left_behind = sum(map(_is_running, alive))
        for process in alive:
            process.kill()
        self._process.wait()
        self._stderr.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
