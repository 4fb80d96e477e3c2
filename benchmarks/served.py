"""`toolhub serve` in a process of its own, reached through a unix socket: `with ServedHub(servers) as hub`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.crew import WorkerFailed
from benchmarks.measure import tree
from benchmarks.result import ROOT, Json

# A hundred servers have to end; each step of the ladder has two seconds.
_CLOSE_S = 60.0
_LAST_WORDS = 500


class ServedHub:
    """A private hub: it ends, with all it started, when this process lets go of it."""

    def __init__(self, servers: Mapping[str, Json], **limits: int) -> None:
        self._document = {"servers": dict(servers), "limits": limits}
        self.left_behind = 0
        """Processes of the hub that were still there after it had ended."""

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory()
        home = Path(self._directory.name)
        self.socket, config = str(home / "hub.sock"), home / "hub.json"
        config.write_text(json.dumps({"hub": {"state_dir": str(home)}, **self._document}))
        self._stderr = (home / "stderr").open("w+")
        command = [sys.executable, "-m", "toolhub.cli", "serve", "--private"]
        self._process = subprocess.Popen(
            [*command, "--config", str(config), "--uds", self.socket],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self._stderr.seek(0)
            last_words = self._stderr.read()[-_LAST_WORDS:]
            self.close()
            raise WorkerFailed(f"`toolhub serve` ended before it was ready: {last_words}")
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def close(self) -> None:
        """Let it end, then kill what is left. Harmless when repeated."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        if stdin.closed:
            return
        below = tree(self.pid)[1:]
        stdin.close()
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
