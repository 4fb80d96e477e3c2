"""A hub in a process of its own, to be killed, with a secret in its environment and sandboxes that are all busy.

    python hostile_hub.py SETTINGS SANDBOXES CODE BUSY [--fork]

Runs CODE in each sandbox, prints a line of JSON (pids, results), then starts BUSY in each and waits. With --fork a
child of it, made by a plain fork, keeps copies of all its descriptors.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

SECRET = "HUBGUARD-" + "0123456789abcdef"
LINGERING = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    while True: pass
while True: pass
"""


async def main() -> None:
    from toolhub_sandbox import Sandboxes

    from toolhub.config import SandboxSettings

    settings = SandboxSettings.model_validate_json(sys.argv[1])
    secret = open(os.memfd_create("secret"), "w")
    secret.write(os.environ["THE_SECRET"])
    secret.flush()
    async with Sandboxes(settings) as sandboxes, anyio.create_task_group() as tasks:
        scope = sandboxes.for_owner("hub")
        boxes = [await scope.create() for _ in range(int(sys.argv[2]))]
        results = []
        for box in boxes:
            done = await box.exec_code(sys.argv[3])
            results.append(str(done.error) if done.error else done.result)
        for box in boxes:
            tasks.start_soon(box.exec_code, sys.argv[4])
        for box in boxes if "fork" in sys.argv[4] else ():
            while (await box.info()).processes != 3:
                await anyio.sleep(0.01)
        told: dict[str, Any] = {"hub": os.getpid(), "results": results, "limits": (await sandboxes.isolation()).limits}
        if "--fork" in sys.argv:
            told["fork"] = os.fork()
            if told["fork"] == 0:
                time.sleep(300)
                os._exit(0)
        print(json.dumps(told), flush=True)
        await anyio.sleep_forever()


@dataclass
class HostileHub:
    """A running hub, and everything below it but a fork of its own."""

    process: Any
    told: dict[str, Any]
    fork: Any
    all: list[Any] = field(default_factory=list)

    @property
    def alive(self) -> list[Any]:
        return [process for process in self.all if process.is_alive]


@asynccontextmanager
async def hub_process(
    *, sandboxes: int, code: str = "None", busy: str = "None", fork: bool = False, **keys: Any
) -> AsyncIterator[HostileHub]:
    """Start this file as a program; leaving kills what is left of it."""
    from real_processes import Process, below

    from tests.toolhub_sandbox.hostile.hostile_stage import settings

    arguments = [settings(**keys).model_dump_json(), str(sandboxes), code, busy, *["--fork"] * fork]
    popen = subprocess.Popen(
        [sys.executable, str(Path(__file__)), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "THE_SECRET": SECRET},
    )
    hub = None
    try:
        assert popen.stdout is not None
        with anyio.fail_after(30):
            line = await anyio.to_thread.run_sync(popen.stdout.readline, abandon_on_cancel=True)
        told = json.loads(line)
        hub = HostileHub(Process.of(told["hub"]), told, Process.of(told["fork"]) if fork else None)
        hub.all = [process for process in below(told["hub"]) if process != hub.fork]
        yield hub
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()
        for process in [*hub.alive, *([hub.fork] if hub.fork else [])] if hub else []:
            process.kill_if_alive()


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where nohup started the tests
    anyio.run(main)
