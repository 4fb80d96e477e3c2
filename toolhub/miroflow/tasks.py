"""The hub tasks of one manager: opened on first use, per process, and opened again if the hub has lost them.

A manager is made in one place and used in others: other threads, other event loops, forked children. So what is open
belongs to a process id, and opening happens in a worker thread under that process's lock, where several loops can wait.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio

import toolhub.client
from toolhub.client import HubUnreachable, RemoteHub, RemoteTask
from toolhub.errors import HubClosed, TaskClosed, Unauthorized
from toolhub.miroflow.hub_command import ADVICE, hub_commands
from toolhub.miroflow.private_hub import private_hubs

T = TypeVar("T")

task_id_var: ContextVar[str | None] = ContextVar("toolhub_miroflow_task_id", default=None)
"""The agent task at hand. With a profile that has task ids, each gets servers of its own that see it as TASK_ID."""

# The hub keeps the servers this long if this process dies. The renewal does not depend on what the agent does.
_LEASE_S = 300.0
# A task id that was unused for this long has ended. Keeping its servers would be a leak.
_FORGET_S = 900.0
# Once with the open task, once after opening it again, once after starting a hub again.
_ATTEMPTS = 3
_TOLERANT = "To go on without tools, set TOOLHUB_TOLERANT=1: then every call answers with this error."


class NoHub(HubClosed):
    """The manager has never reached a hub and cannot start one, so no tool can run. Nothing was sent."""


class Open(Protocol):
    """Opens a task with a manager's servers on a hub. Blocks."""

    def __call__(self, hub: RemoteHub, task_id: str | None, *, run: str, lease: float) -> RemoteTask: ...


class HubSource(Protocol):
    """Finds a hub. `advice` says what to do if there is none."""

    @property
    def advice(self) -> str: ...

    def url(self) -> str:
        """Return its address; may block. Raises HubUnreachable or HubClosed."""

    def replace(self, url: str) -> bool:
        """Report that no hub answers at `url`; return whether `url()` will now give another address. May block."""


@dataclass(frozen=True)
class HubAt:
    """A hub at a known address. It cannot be replaced."""

    address: str

    @property
    def advice(self) -> str:
        return (
            f"Start a hub with `toolhub serve` and set TOOLHUB_URL to its address. Or unset TOOLHUB_URL (and leave out "
            f"hub=), then the manager starts a hub of its own; for that {ADVICE}"
        )

    def url(self) -> str:
        return self.address

    def replace(self, url: str) -> bool:
        return False


@dataclass(frozen=True)
class StartedHub:
    """The private hub of the process."""

    command: Any = None
    advice: str = ""
    """Its errors say it already."""

    def url(self) -> str:
        return private_hubs.url(hub_commands(self.command))

    def replace(self, url: str) -> bool:
        return private_hubs.replace(url)


@dataclass(eq=False)
class _Process:
    """What one process has open."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    hubs: dict[str, RemoteHub] = field(default_factory=dict)
    tasks: dict[str | None, RemoteTask] = field(default_factory=dict)
    used_at: dict[str | None, float] = field(default_factory=dict)


class Tasks:
    """See the module's text. open_on: opens a task with the manager's servers. run: the label of the tasks."""

    def __init__(self, source: HubSource, open_on: Open, *, token: str | None, run: str) -> None:
        self.was_reached = False
        """Whether a hub was ever reached. A hub that is missing from the start means a mistake in the set-up."""
        self._source = source
        self._open_on = open_on
        self._token = token
        self._run = run
        self._processes: dict[int, _Process] = {}

    def __repr__(self) -> str:
        process = self._processes.get(os.getpid())
        return f"<Tasks of {os.getpid()} open={list(process.tasks.values()) if process else []}>"

    async def use(self, task_id: str | None, operation: Callable[[RemoteTask], Awaitable[T]]) -> T:
        """Run `operation` with the task, opening it (again) as long as nothing was sent.

        Raises NoHub when no hub was ever reached and none can be.
        """
        for attempt in range(_ATTEMPTS):
            task = await self._task(task_id)
            try:
                return await operation(task)
            except TaskClosed as exc:
                if exc.sent == "maybe" or attempt == _ATTEMPTS - 1:
                    raise
            except HubUnreachable:
                if attempt == _ATTEMPTS - 1:
                    raise
            self._forget(task_id, task)
        raise AssertionError("the last attempt returns or raises")

    async def aclose(self) -> None:
        """End what this process has open; another use opens afresh."""
        process = self._processes.pop(os.getpid(), None)
        if process is None:
            return
        for task in list(process.tasks.values()):
            await task.aclose()
        for hub in list(process.hubs.values()):
            await hub.aclose()

    async def _task(self, task_id: str | None) -> RemoteTask:
        process = self._process()
        process.used_at[task_id] = time.monotonic()
        task = process.tasks.get(task_id)
        if task is not None:
            return task
        open_it = functools.partial(self._open, process, task_id)
        # A cancelled caller must not stop the opening, because others may wait for it.
        return await anyio.to_thread.run_sync(open_it, abandon_on_cancel=True)

    def _process(self) -> _Process:
        pid = os.getpid()
        process = self._processes.get(pid)
        if process is None:
            # After a fork the inherited tasks belong to the parent.
            process = self._processes.setdefault(pid, _Process())
        return process

    def _open(self, process: _Process, task_id: str | None) -> RemoteTask:
        with process.lock:
            if task_id in process.tasks:
                return process.tasks[task_id]
            _drop_unused(process)
            try:
                task = self._open_somewhere(process, task_id)
            except (HubClosed, Unauthorized) as exc:
                if self.was_reached:
                    raise
                raise NoHub("\n".join(filter(None, (str(exc), self._source.advice, _TOLERANT)))) from exc
            self.was_reached = True
            process.tasks[task_id] = task
            return task

    def _open_somewhere(self, process: _Process, task_id: str | None) -> RemoteTask:
        url = self._source.url()
        try:
            return self._open_at(url, process, task_id)
        except HubUnreachable:
            process.hubs.pop(url, None)
            if not self._source.replace(url):
                raise
            return self._open_at(self._source.url(), process, task_id)

    def _open_at(self, url: str, process: _Process, task_id: str | None) -> RemoteTask:
        hub = process.hubs.get(url)
        if hub is None:
            hub = process.hubs[url] = toolhub.client.connect(url, token=self._token)
        return self._open_on(hub, task_id, run=self._run, lease=_LEASE_S)

    def _forget(self, task_id: str | None, task: RemoteTask) -> None:
        tasks = self._process().tasks
        if tasks.get(task_id) is task:
            tasks.pop(task_id, None)


def _drop_unused(process: _Process) -> None:
    """Drop idle task ids. The lease renewer closes a task that is no longer referenced."""
    now = time.monotonic()
    for task_id, used_at in list(process.used_at.items()):
        if now - used_at > _FORGET_S:
            process.tasks.pop(task_id, None)
            process.used_at.pop(task_id, None)
