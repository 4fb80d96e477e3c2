"""A hub in another process, and everything that it owns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from real_processes import Process, below

import toolhub
from toolhub import ServerSpec
from toolhub.spawn.journal import sweep

PROGRAM = Path(__file__).with_name("killable_hub_program.py")


@dataclass
class KillableHub:
    """A running hub: itself, its servers, and every process below it but a fork of its own."""

    process: Process
    servers: list[Process]
    fork: Process | None
    all: list[Process] = field(default_factory=list)

    def look(self) -> None:
        """See what is below the hub now."""
        self.all = [process for process in below(self.process.pid) if process != self.fork]

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.all if process.is_alive]


@asynccontextmanager
async def another_hub(
    state_dir: Path, *specs: ServerSpec, fork: bool = False, early: bool = False
) -> AsyncIterator[KillableHub]:
    """Start killable_hub_program.py; leaving kills what is left of it."""
    servers = [spec.model_dump(exclude_unset=True) for spec in specs]
    environment = os.environ | {"PYTHONPATH": str(Path(toolhub.__file__).parents[1])}
    arguments = [str(state_dir), json.dumps(servers), *["--fork"] * fork, *["--early"] * early]
    popen = subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    hub = None
    try:
        assert popen.stdout is not None
        with anyio.fail_after(20):
            line = await anyio.to_thread.run_sync(popen.stdout.readline, abandon_on_cancel=True)
        told: dict[str, Any] = json.loads(line)
        hub = KillableHub(
            Process.of(told["hub"]),
            [Process.of(pid) for pid in told["servers"]],
            Process.of(told["fork"]) if fork else None,
        )
        hub.look()
        yield hub
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()  # type: ignore[union-attr]  # it is a pipe
        for process in [*hub.alive, *([hub.fork] if hub.fork else [])] if hub else []:
            process.kill_if_alive()
        sweep(state_dir / "journal")  # of the cgroup: whoever would have removed it was killed as well
