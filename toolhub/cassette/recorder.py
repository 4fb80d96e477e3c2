"""Records the exchanges of a hub's tasks: what each task asked its servers, and what it got.

A call waits for nothing: its exchange becomes a line of JSON in memory, and a worker thread writes the lines. A
recording that cannot be written never fails a call: the log says so, and `statistics()` counts what is lost.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from toolhub.cassette import Kind, RecordedServer
from toolhub.cassette.recording import MAX_BYTES, PACKED_SUFFIX, SUFFIX, Header
from toolhub.config.redact import redact_json, secret_forms
from toolhub.errors import ConfigError, TaskClosed, ToolhubError
from toolhub.layers import Handler, Layer
from toolhub.model import OWN_PROFILE, Call, CassetteStatistics, Json, Listener, Requester, Result
from toolhub.private_files import check_private_folder
from toolhub.wire import error_to_wire

# Lines wait this long for others, so that a busy hub writes once for many calls.
_BATCH_S = 0.2
# Lines that wait for the disk. Calls wait while there are more.
_MOST_WAITING_BYTES = 64 * 1024 * 1024
# The end of a task waits this long for the rest of its recording.
_FINISH_S = 60.0
_CALL_PARAMS = frozenset({"name", "arguments", "_meta"})

logger = logging.getLogger(__name__)


class CassetteRecorder:
    """The recordings of one hub. secrets: are left out of them."""

    def __init__(self, folder: Path, secrets: frozenset[str]) -> None:
        self.folder = folder
        self._secrets = secrets
        self.recorded = 0
        self.lost = 0

    @classmethod
    async def open(cls, folder: Path, secrets: frozenset[str]) -> CassetteRecorder:
        """Make the folder if need be. Raises ConfigError if it cannot be used."""
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            check_private_folder(folder)
        except OSError as exc:
            raise ConfigError(f"cannot record into the cassette {folder}: {exc}", key="hub.cassette.dir") from exc
        return cls(folder, secrets)

    @asynccontextmanager
    async def task(
        self, task_id: str, run: str, servers: Collection[str], secrets: frozenset[str]
    ) -> AsyncIterator[TaskRecorder]:
        """Record one task. secrets: of its own servers."""
        task = TaskRecorder(self, Header.now(task_id, run, servers), self._secrets | secrets)
        async with anyio.create_task_group() as writing:
            writing.start_soon(task.write_lines)
            try:
                yield task
            finally:
                writing.cancel_scope.cancel()
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _FINISH_S):
                    await task.finish()

    def statistics(self) -> CassetteStatistics:
        return CassetteStatistics(recorded=self.recorded, lost=self.lost)


class TaskRecorder:
    """The recording of one task."""

    is_live = True

    def __init__(self, recorder: CassetteRecorder, header: Header, secrets: frozenset[str]) -> None:
        self._recorder = recorder
        self._header = header
        self._secrets = secret_forms(secrets)
        self._escaped = [json.dumps(secret)[1:-1] for secret in self._secrets]
        self._numbers = itertools.count(1)
        self._opened_at = anyio.current_time()
        self._lines: list[str] = []
        self._waiting_bytes = 0
        self._written_bytes = 0
        self._has_lines = anyio.Event()
        self._was_written = anyio.Event()
        self._described: dict[str, tuple[bool, bool]] = {}
        self._asked: set[str] = set()
        self._asking = anyio.Lock()
        self._path: Path | None = None
        self._failed = False
        self._ended = False

    def layer(self, kind: Kind, servers: Mapping[str, RecordedServer], bounded: Layer) -> Layer:
        """Record what passes. kind: of the exchanges."""

        def wrap(inner: Handler) -> Handler:
            async def handle(call: Call) -> Result:
                if self._waiting_bytes > _MOST_WAITING_BYTES and not self._failed:
                    await self._was_written.wait()
                server = servers[call.server]
                if call.server not in self._asked or self._asking.locked():  # calls that came earlier go first
                    await self._ask_for_tools(call, server)
                number, began = next(self._numbers), anyio.current_time()
                events: list[tuple[float, str, Json]] = []
                outcome: Json = {}
                try:
                    result = await inner(_watched(call, began, events))
                    outcome = {"result": result.raw}
                    return result
                except TaskClosed:
                    raise  # its task is over, as if it had been cancelled
                except ToolhubError as exc:
                    outcome = {"error": error_to_wire(exc)}
                    raise
                finally:
                    sent = call.delivery.sent
                    line: Json = {"n": number, "kind": kind, "server": call.server, "tool": call.tool}
                    line |= _request(call) | {
                        "changes": kind == "call" and sent == "maybe" and server.may_change(call.tool),
                        "sent": sent,
                        "began": round(began - self._opened_at, 6),
                        "seconds": round(anyio.current_time() - began, 6),
                    }
                    if events:
                        line["events"] = events
                    self._add(line | outcome)
                    self.describe(call.server, server)

            return handle

        return wrap

    async def _ask_for_tools(self, call: Call, server: RecordedServer) -> None:
        """Have a server list its tools before its first call: it says which of them are read-only."""
        async with self._asking:
            if call.server not in self._asked:
                self._asked.add(call.server)
                with anyio.CancelScope(deadline=call.deadline), contextlib.suppress(ToolhubError):
                    await server.ask_for_tools(call.profile or OWN_PROFILE)  # if it fails, so does the call

    def describe(self, name: str, server: RecordedServer) -> None:
        """Record what is known about a server and was not known before."""
        known = self._described.get(name, (False, False))
        if all(known):
            return
        info, tools = server.description()
        now = (known[0] or info is not None, known[1] or tools is not None)
        if now != known:
            self._described[name] = now
            self._add({"describes": name, "info": asdict(info) if info else None, "tools": tools})

    def _add(self, line: Json) -> None:
        is_exchange = "n" in line
        self._recorder.recorded += is_exchange
        if self._failed or self._ended:
            self._recorder.lost += is_exchange
            return
        try:
            text = json.dumps(line, separators=(",", ":"))  # at once, because the caller may change its result
        except (TypeError, ValueError, RecursionError) as exc:
            self._recorder.lost += 1
            logger.error("a call of task %s cannot be recorded: it has no JSON form (%s)", self._header.task, exc)
            return
        self._lines.append(text)
        self._waiting_bytes += len(text)
        if len(self._lines) == 1:
            self._has_lines.set()

    # --- writing ----------------------------------------------------------------------------------------------------

    async def write_lines(self) -> None:
        """Write lines as they come, until cancelled."""
        while True:
            await self._has_lines.wait()
            await anyio.sleep(0 if self._waiting_bytes > _MOST_WAITING_BYTES else _BATCH_S)
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _FINISH_S):
                await self._write_waiting()

    async def finish(self) -> None:
        """Write the rest, and compress the file."""
        await self._write_waiting()
        self._ended = True
        if self._path is not None and not self._failed:
            await self._in_thread(_pack, self._path)

    async def _write_waiting(self) -> None:
        lines, self._lines = self._lines, []
        self._has_lines = anyio.Event()
        if lines and not self._failed:
            await self._in_thread(self._write, lines)
        self._waiting_bytes = sum(map(len, self._lines))
        self._was_written.set()
        self._was_written = anyio.Event()

    async def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            await anyio.to_thread.run_sync(work, *arguments)
        except OSError as exc:
            self._failed = True
            logger.error(
                "the recording of task %s ends here: %s cannot be written: %s",
                self._header.task,
                self._path or self._recorder.folder,
                exc.strerror or exc,
            )

    def _write(self, lines: list[str]) -> None:
        if self._path is None:
            self._path = _new_file(self._recorder.folder, self._header.task)
            lines = [self._header.model_dump_json(), *lines]
        data = "".join(f"{self._without_secrets(line)}\n" for line in lines).encode()
        if self._written_bytes + len(data) > MAX_BYTES:
            raise OSError(f"it would be larger than {MAX_BYTES} bytes")
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(fd, "wb") as file:
            file.write(data)
        self._written_bytes += len(data)

    def _without_secrets(self, line: str) -> str:
        if not any(secret in line for secret in self._escaped):
            return line
        return json.dumps(redact_json(json.loads(line), self._secrets), separators=(",", ":"))


def _new_file(folder: Path, task_id: str) -> Path:
    """Make the file of a task. A second task of that id, such as another attempt, gets a file of its own."""
    for number in itertools.count(1):
        stem = task_id if number == 1 else f"{task_id}~{number}"
        path = folder / (stem + SUFFIX)
        if (folder / (stem + PACKED_SUFFIX)).exists():
            continue
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        return path
    raise AssertionError("count() has no end")


def _pack(path: Path) -> None:
    """Replace a file by a compressed one."""
    packed = path.with_name(path.name.removesuffix(SUFFIX) + PACKED_SUFFIX)
    new = packed.with_name(packed.name + ".tmp")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    # No time and no name in the compressed file: equal recordings are equal files.
    with open(path, "rb") as source, open(fd, "wb") as target, gzip.GzipFile("", "wb", 6, target, mtime=0) as file:
        shutil.copyfileobj(source, file)
    os.replace(new, packed)
    path.unlink()


# --- what a call asks and is told -------------------------------------------------------------------------------------


def request_of(call: Call) -> tuple[Json, Json, str]:
    """Return arguments, further parameters and era of a request, without what differs from client to client."""
    relayed = call.relayed
    if relayed is None:
        return dict(call.arguments), {}, "handshake"
    params = relayed.params or {}
    if relayed.method != "tools/call":
        return {name: value for name, value in params.items() if name != "_meta"}, {}, relayed.profile.era
    more = {name: value for name, value in params.items() if name not in _CALL_PARAMS}
    return dict(call.arguments), more, relayed.profile.era


def _request(call: Call) -> Json:
    arguments, params, era = request_of(call)
    line: Json = {"arguments": arguments}
    if params:
        line["params"] = params
    if era != "handshake":
        line["era"] = era
    return line


def _watched(call: Call, began: float, events: list[tuple[float, str, Json]]) -> Call:
    """Return a copy of the call that also adds its progress, logs and other notifications to `events`."""

    def note(method: str, params: Json) -> None:
        events.append((round(anyio.current_time() - began, 6), method, params))

    if call.relayed is not None:
        watched = _WatchedRequester(call.relayed.requester, note)
        return replace(call, relayed=replace(call.relayed, requester=watched))
    on_progress, on_log = call.on_progress, call.on_log
    if on_progress is None and on_log is None:
        return call

    async def progress(done: float, total: float | None, message: str | None) -> None:
        assert on_progress is not None
        note("notifications/progress", {"progress": done, "total": total, "message": message})
        await on_progress(done, total, message)

    async def log(params: Json) -> None:
        assert on_log is not None
        note("notifications/message", params)
        await on_log(params)

    return replace(call, on_progress=progress if on_progress else None, on_log=log if on_log else None)


class _WatchedRequester:
    """The client of a relayed request. What it is asked is not recorded: the result shows what came of it."""

    def __init__(self, requester: Requester, note: Callable[[str, Json], None]) -> None:
        self.id = requester.id
        self.listener: Listener | None = requester.listener
        self._requester = requester
        self._note = note

    def notify(self, method: str, params: Json | None) -> None:
        hidden = ("progressToken", "_meta")
        self._note(method, {name: value for name, value in (params or {}).items() if name not in hidden})
        self._requester.notify(method, params)

    async def request(self, method: str, params: Json | None) -> Json:
        return await self._requester.request(method, params)

    def close_stream(self) -> None:
        self._requester.close_stream()
