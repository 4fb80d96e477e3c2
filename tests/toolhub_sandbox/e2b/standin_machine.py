"""One stand-in sandbox: a temporary folder, its processes, and its code contexts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import psutil

HOME = "/home/user"
KERNEL = Path(__file__).with_name("standin_kernel.py")


class Context:
    """A code context: one interpreter process, one piece of code at a time, in order."""

    def __init__(self, folder: str, env: dict[str, str], tasks: anyio.abc.TaskGroup) -> None:
        self.id = uuid.uuid4().hex
        self._folder, self._env, self._tasks = folder, env, tasks
        self._turn = anyio.Lock()
        self.heeds_disconnects = True
        self.start()

    def start(self) -> None:
        ours, theirs = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(KERNEL), str(theirs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env=self._env,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        self._said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._tasks.start_soon(self._listen, ours, self._said)

    async def _listen(self, descriptor: int, said: asyncio.Queue[dict[str, Any] | None]) -> None:
        with os.fdopen(descriptor, "rb") as replies:
            while line := await anyio.to_thread.run_sync(replies.readline, abandon_on_cancel=True):
                message = json.loads(line)
                said.put_nowait(None if message["type"] == "end_of_execution" else message)
        said.put_nowait({"type": "error", "name": "ContextRestarting", "value": "the kernel died", "traceback": ""})
        said.put_nowait(None)

    async def execute(self, code: str) -> AsyncIterator[dict[str, Any]]:
        async with self._turn:
            if self.process.poll() is not None:  # as the service does, without a word
                self.restart()
            process, said, ended = self.process, self._said, False
            process.stdin.write(json.dumps(code).encode() + b"\n")
            process.stdin.flush()
            try:
                while (message := await said.get()) is not None:
                    yield message
                ended = True
            finally:
                if not ended:
                    await self._drain(process, said)
            if process is self.process and process.poll() is not None:
                self.restart()

    async def _drain(self, process: subprocess.Popen[bytes], said: asyncio.Queue[dict[str, Any] | None]) -> None:
        """The client went away: interrupt, and wait as the service does until the interpreter is idle."""
        if self.heeds_disconnects:
            process.send_signal(signal.SIGINT)
        with anyio.CancelScope(shield=True):
            while await said.get() is not None:
                pass

    def restart(self) -> None:
        self.kill()
        self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


class Machine:
    """A sandbox as the service sees it."""

    def __init__(self, request: dict[str, Any], tasks: anyio.abc.TaskGroup) -> None:
        self.id = "i" + uuid.uuid4().hex[:19]
        self.request = request
        self.folder = tempfile.mkdtemp(prefix="e2b-standin-")
        self.token = uuid.uuid4().hex
        self.started_at = time.time()
        self.ends_at = self.started_at + request["timeout"]
        self.is_running = True
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        self._tasks = tasks
        self.contexts: dict[str, Context] = {}
        self.add_context()

    @property
    def env(self) -> dict[str, str]:
        own = {"HOME": self.folder, "E2B_STANDIN": self.id}
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **own, **(self.request.get("envVars") or {})}

    def add_context(self) -> Context:
        context = Context(self.folder, self.env, self._tasks)
        self.contexts[context.id] = context
        return context

    def path(self, path: str) -> Path:
        """Where a path of the sandbox is on this machine; good enough for trusted tests."""
        return Path(self.folder, os.path.relpath(os.path.join(HOME, path), HOME))

    def kill(self) -> None:
        """End every process of it, whatever session it is in."""
        if self.is_running:
            self.is_running = False
            for context in self.contexts.values():
                context.kill()
            for process in self.living():
                process.kill()
            shutil.rmtree(self.folder, ignore_errors=True)

    def living(self) -> list[psutil.Process]:
        """Its processes, found by what they inherited."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("E2B_STANDIN") == self.id and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found
