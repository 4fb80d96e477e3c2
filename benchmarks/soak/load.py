"""The clients: one process with many tasks, each with a few calls in flight. A worker role.

A task behaves as a careful agent. It repeats a call that failed with `sent` = "no", with the same key. It repeats a
call that may have been executed only if the tool is read-only. When its task is gone, it opens another.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import anyio
from mcp import ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client

import toolhub
from benchmarks.common.result import Json
from benchmarks.common.worker_main import Act
from benchmarks.soak.ledger import CallRecord, Ledger, Told, is_repeatable
from toolhub import CallError, HubClosed, TaskClosed, ToolhubError

# Longer than any fault lasts; a busy machine takes seconds to start a server.
_TIMEOUT_S = 20.0
_ATTEMPTS = 6
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# Shares of the calls. `own` is a process of the task, executed for one half of the tasks and forked for the other. A
# call of a builtin costs as much as two of a process, one over HTTP as much as five, one of a sandbox as fifty.
_MIX = {"own": 0.4, "shared": 0.5, "builtin": 0.1}
_MIX_WITH_HTTP = {"own": 0.3, "shared": 0.4, "http": 0.3}
_HTTP_EACH = 6
_PYTHON_EACH = 40
# An agent makes several calls at once.
_LANES = 2
# Tasks with a sandbox; each is two processes.
_SANDBOX_EACH = 4
_CREATED, _RAN = re.compile(r"sandbox_id: (\S+)"), re.compile(r"soak (\S+) (\d+)")


class TaskCaller(Protocol):
    """One task, however it is reached."""

    async def call(self, server: str, tool: str, arguments: Json) -> str:
        """Return the answer's text. Raises `Failed`."""


class Failed(Exception):
    def __init__(self, error: str, *, is_sent: bool, is_over: bool = False) -> None:
        """is_over: the task is gone, or the hub."""
        super().__init__(error)
        self.error = error
        self.is_sent = is_sent
        self.is_over = is_over


# --- two ways to reach the hub ----------------------------------------------------------------------------------------


class SocketTask:
    """A task over the unix socket, with toolhub's client."""

    def __init__(self, task: Any) -> None:
        self._task = task

    async def call(self, server: str, tool: str, arguments: Json) -> str:
        try:
            result = await self._task.call(server, tool, arguments, timeout=_TIMEOUT_S)
        except ToolhubError as exc:
            raise failure(exc) from exc
        if result.is_error:
            raise Failed("tool error", is_sent=True)
        return str(result.text)


def failure(exc: ToolhubError) -> Failed:
    """Whether a call may be repeated after this error of toolhub."""
    is_over = isinstance(exc, TaskClosed | HubClosed)
    sent = exc.sent if isinstance(exc, CallError | TaskClosed) else "no"
    if type(exc).__name__ in ("HubLost", "HubTimeout"):
        sent = "maybe"
    return Failed(type(exc).__name__, is_sent=sent == "maybe", is_over=is_over)


class McpTask:
    """A task over `/mcp`, with the SDK's client. It cannot tell whether a failed call was sent."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def call(self, server: str, tool: str, arguments: Json) -> str:
        try:
            with anyio.fail_after(_TIMEOUT_S):
                result = await self._session.call_tool(f"{server}__{tool}", arguments)
        except MCPError as exc:
            raise Failed("MCP client error", is_sent=True, is_over=True) from exc
        except TimeoutError as exc:
            raise Failed("CallTimeout", is_sent=True, is_over=True) from exc
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream) as exc:
            raise Failed("MCP client error", is_sent=True, is_over=True) from exc
        if result.is_error:
            raise Failed("tool error", is_sent=True)
        return "".join(getattr(block, "text", "") for block in result.content)


@asynccontextmanager
async def open_socket_task(hub: Any, name: str) -> AsyncIterator[TaskCaller]:
    async with hub.task(name, run="soak") as task:
        yield SocketTask(task)


@asynccontextmanager
async def open_mcp_task(url: str) -> AsyncIterator[TaskCaller]:
    async with streamable_http_client(url) as (read, write, *_), ClientSession(read, write) as session:
        with anyio.fail_after(_TIMEOUT_S):
            await session.initialize()
        yield McpTask(session)


# --- a task's work ----------------------------------------------------------------------------------------------------


class CallJournal:
    """The file in which this process records what it learns about its calls."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = path.open("ab", buffering=0)
        self._name = name
        self._numbers = itertools.count()

    def begin(self, server: str) -> tuple[int, str]:
        """Return the number and the key of a new call."""
        number = next(self._numbers)
        self.note(number, Told.ASKED, server)
        return number, f"{self._name}-{number}"

    def note(self, number: int, told: Told, server: str, error: str = "", began: float | None = None) -> None:
        milliseconds = 0 if began is None else round((time.monotonic() - began) * 1e3)
        self._file.write(CallRecord(number, told, server, error, milliseconds).pack())


class Sandbox:
    """A task's sandbox. It counts its runs, which shows code that was executed twice."""

    def __init__(self) -> None:
        self.name = ""
        self._asked = 0

    async def run(self, task: TaskCaller, key: str) -> str:
        """Run code that counts; return the key if the count is possible. Raises Failed."""
        if not self.name:
            found = _CREATED.search(await task.call("python", "create_sandbox", {}))
            if found is None:
                raise Failed("tool error", is_sent=False)
            self.name, self._asked = found[1], 0
        self._asked += 1
        code = f"n = globals().get('n', 0) + 1; print('soak {key}', n)"
        text = await task.call("python", "run_python_code", {"code_block": code, "sandbox_id": self.name})
        ran = _RAN.search(text)
        if ran is None:  # the sandbox was lost; the tool says so in a text, for models
            self.name = ""
            raise Failed("tool error", is_sent=True)
        return ran[1] if int(ran[2]) <= self._asked else "executed twice"


class Agent:
    """Opens one task after another and makes `calls` calls in each, until it is stopped."""

    def __init__(
        self, journal: CallJournal, name: str, number: int, *, calls: int, sandboxes: bool, transport: str
    ) -> None:
        """number: decides which servers it uses. sandboxes: whether some of the agents have one."""
        self._journal = journal
        self._name = name
        self._calls = calls
        self._has_sandbox = sandboxes and number % _SANDBOX_EACH == 0
        self._own = "fork" if number % 2 else "exec"
        self._mix = _MIX_WITH_HTTP if number % _HTTP_EACH == 0 else _MIX
        self._transport = transport
        self._source = random.Random(name)

    async def work(
        self, open_task: Callable[[str], AbstractAsyncContextManager[TaskCaller]], stop: anyio.Event
    ) -> None:
        """Open one task after another; a lost one is replaced at once. open_task: takes a name."""
        for number in itertools.count():
            if stop.is_set():
                return
            try:
                async with open_task(f"{self._name}.{number}") as task:
                    await self._use(task, stop)
            except Exception:
                # A hub that restarts refuses tasks. The journal has the outcome of every call already.
                await anyio.sleep(self._source.uniform(_PAUSE_S, 4 * _PAUSE_S))

    async def _use(self, task: TaskCaller, stop: anyio.Event) -> None:
        async with anyio.create_task_group() as lanes:
            for lane in range(_LANES):
                lanes.start_soon(self._follow, task, lane, stop)

    async def _follow(self, task: TaskCaller, lane: int, stop: anyio.Event) -> None:
        """Make one call after another. The first lane also uses the sandbox."""
        sandbox = Sandbox()
        for call in range(lane, self._calls, _LANES):
            if stop.is_set():
                return
            if self._has_sandbox and call % _PYTHON_EACH == 0 and lane == 0:
                is_over = await self._make(task, "python", sandbox)
            else:
                server = self._source.choices([*self._mix], [*self._mix.values()])[0]
                is_over = await self._make(task, self._own if server == "own" else server, sandbox)
            if is_over:
                return

    async def _make(self, task: TaskCaller, server: str, sandbox: Sandbox) -> bool:
        """Make one call, with retries. Return True when the task is gone."""
        shown = "mcp" if self._transport == "mcp" else server
        number, key = self._journal.begin(shown)
        tool = "look" if is_repeatable(number) else "work"
        pause = _PAUSE_S
        for _ in range(_ATTEMPTS):
            began = time.monotonic()
            try:
                if server == "python":
                    text = await sandbox.run(task, key)
                else:
                    text = await task.call(server, tool, {"key": key})
            except Failed as exc:
                told = Told.MAYBE if exc.is_sent else Told.UNSENT
                self._journal.note(number, told, shown, exc.error, began)
                if exc.is_over or (exc.is_sent and (tool == "work" or server == "python")):
                    self._journal.note(number, Told.GAVE_UP, shown)
                    return exc.is_over
            except BaseException:
                # The SDK's client tells the end of a connection by cancelling the task that uses it.
                self._journal.note(number, Told.MAYBE, shown, "MCP client error", began)
                self._journal.note(number, Told.GAVE_UP, shown)
                raise
            else:
                self._journal.note(number, Told.ANSWERED if text == key else Told.WRONG, shown, "", began)
                return False
            await anyio.sleep(self._source.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._journal.note(number, Told.GAVE_UP, shown)
        return False


@asynccontextmanager
async def open_load(
    address: str, transport: str, folder: str, number: int, seed: str, tasks: int, calls: int, sandboxes: bool
) -> AsyncIterator[Act]:
    """Run `tasks` agents. Any request stops them, and is answered when all have stopped.

    address: of the unix socket, or the URL of `/mcp`, as `transport` says. number: of this process.
    """
    journal = CallJournal(Ledger.told_path(Path(folder), number), str(number))
    stop, stopped = anyio.Event(), anyio.Event()

    async def act(_: Json) -> Json:
        stop.set()
        await stopped.wait()
        return {}

    async with toolhub.connect(address) if transport == "socket" else nullcontext() as hub:

        def open_task(name: str) -> AbstractAsyncContextManager[TaskCaller]:
            return open_socket_task(hub, name) if transport == "socket" else open_mcp_task(address)

        async def work() -> None:
            async with anyio.create_task_group() as agents:
                for agent in range(tasks):
                    name = f"soak-{seed}-{number}-{agent}"
                    worker = Agent(journal, name, agent, calls=calls, sandboxes=sandboxes, transport=transport)
                    agents.start_soon(worker.work, open_task, stop)
            stopped.set()

        async with anyio.create_task_group() as working:
            working.start_soon(work)
            yield act
            stop.set()
