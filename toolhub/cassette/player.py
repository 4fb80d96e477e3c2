"""Replays recordings: every answer comes from a file, and no server is started.

A task is replayed from the recording of its id. If its id was not recorded (clients make up new ones), it takes the
recording in which its first call stands, of several the one that was used least. What a recording does not have is
never asked of a server: it is the error `NotRecorded`, which shows the nearest recorded call.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from opentelemetry import trace as otel

from toolhub.cassette import Kind, RecordedServer
from toolhub.cassette.recorder import request_of
from toolhub.cassette.recording import (
    Description,
    Exchange,
    Header,
    Recording,
    files_in,
    history_after,
    key_of,
    read_header,
    read_recording,
)
from toolhub.channel.base import Channel, ExitInfo, Refused
from toolhub.config import ServerSpec
from toolhub.config.redact import redact_json, secret_forms
from toolhub.errors import NotRecorded
from toolhub.extensions import BuiltinContext
from toolhub.layers import Handler, Layer
from toolhub.layers.clone import clone_json
from toolhub.model import (
    Call,
    CassetteStatistics,
    ClientProfile,
    Json,
    Listener,
    LogFn,
    ProgressFn,
    RelayedRequest,
    Result,
    ServerInfo,
)
from toolhub.wire import error_from_wire

_NO_HISTORY = b""
_UNKNOWN_SERVER = ServerInfo("recorded", "", "2025-11-25", {"tools": {}})
# An error shows at most so much of an argument, and compares so many recorded calls.
_SHOWN_CHARS = 160
_COMPARED = 200
_COMPARED_CHARS = 2000

logger = logging.getLogger(__name__)


class CassettePlayer:
    """The recordings of a folder, for the tasks of one hub.

    time_scale: 1 for the recorded times, 0 to answer at once. secrets: were left out of the recordings.
    """

    def __init__(self, files: Mapping[Path, Header], *, time_scale: float, secrets: frozenset[str]) -> None:
        self._files = dict(files)
        self._uses = dict.fromkeys(files, 0)
        self._time_scale = time_scale
        self._secrets = secrets
        self._first_keys: dict[Path, set[bytes]] | None = None
        self._finding = anyio.Lock()
        self._tasks: dict[str, TaskPlayer] = {}
        self._descriptions: dict[str, Description | None] = {}
        """By server, for tasks whose recording does not describe it: to find one, files are read whole."""
        self.servers = list(dict.fromkeys(name for header in files.values() for name in header.servers))
        """The names of all recorded servers."""
        self.replayed = 0
        self.missed = 0

    @classmethod
    async def open(cls, folder: Path, *, time_scale: float, secrets: frozenset[str]) -> CassettePlayer:
        """Read the headers. Raises ConfigError."""

        def read() -> dict[Path, Header]:
            return {path: read_header(path) for path in files_in(folder)}

        return cls(await anyio.to_thread.run_sync(read), time_scale=time_scale, secrets=secrets)

    @asynccontextmanager
    async def task(
        self, task_id: str, run: str, servers: Collection[str], secrets: frozenset[str]
    ) -> AsyncIterator[TaskPlayer]:
        """Replay one task. Raises ConfigError if its recording cannot be read."""
        task = TaskPlayer(self, self._secrets | secrets, self._time_scale)
        own = [path for path, header in self._files.items() if header.task == task_id]
        if own:
            task.recording = await self.read(self._least_used(own))
        self._tasks[task_id] = task
        try:
            yield task
        finally:
            del self._tasks[task_id]

    def _least_used(self, paths: Collection[Path]) -> Path:
        chosen = min(paths, key=lambda path: self._uses[path])
        self._uses[chosen] += 1
        return chosen

    async def read(self, path: Path) -> Recording:
        return await anyio.to_thread.run_sync(read_recording, path)

    async def beginning_with(self, key: bytes, *, uses: bool) -> Recording | None:
        """Return the recording that has an exchange before any change; of several, the one that was used least."""
        async with self._finding:
            if self._first_keys is None:
                self._first_keys = await anyio.to_thread.run_sync(self._read_first_keys)
            found = [path for path, keys in self._first_keys.items() if key in keys]
            if not found:
                return None
            chosen = self._least_used(found)
            if not uses:
                self._uses[chosen] -= 1
            return await self.read(chosen)

    def _read_first_keys(self) -> dict[Path, set[bytes]]:
        return {path: read_recording(path).first_keys() for path in self._files}

    @property
    def paths(self) -> list[Path]:
        return list(self._files)

    # --- servers ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_channel(
        self, spec: ServerSpec, context: BuiltinContext, profile: ClientProfile
    ) -> AsyncIterator[Channel]:
        """Open a channel to a recorded server: it knows what was recorded about it, and nothing else."""
        task = self._tasks.get(context.owner)
        described = task.recording.servers.get(spec.name) if task is not None and task.recording else None
        if described is None:
            if spec.name not in self._descriptions:
                self._descriptions[spec.name] = await anyio.to_thread.run_sync(self._describe, spec.name)
            described = self._descriptions[spec.name]
        yield _RecordedChannel(described or Description(describes=spec.name))

    def _describe(self, name: str) -> Description | None:
        for path in self._files:
            if described := read_recording(path).servers.get(name):
                return described
        return None

    def statistics(self) -> CassetteStatistics:
        return CassetteStatistics(replayed=self.replayed, missed=self.missed)


def recorded_server(name: str) -> ServerSpec:
    """Return the spec of a recorded server that the config does not have. Its command is never run."""
    return ServerSpec(name=name, command="recorded")


class TaskPlayer:
    """The replay of one task."""

    is_live = False

    def __init__(self, player: CassettePlayer, secrets: frozenset[str], time_scale: float) -> None:
        self.recording: Recording | None = None
        self._player = player
        self._secrets = secret_forms(secrets)
        self._time_scale = time_scale
        self._histories: dict[str, bytes] = {}
        self._changes: dict[str, list[Exchange]] = {}
        self._given: dict[tuple[bytes, bytes], int] = {}
        self._binding = anyio.Lock()

    def layer(self, kind: Kind, servers: Mapping[str, RecordedServer], bounded: Layer) -> Layer:
        """Answer from the recording. kind: of the exchanges."""

        def wrap(inner: Handler) -> Handler:
            async def handle(call: Call) -> Result:
                exchange = await self._find(kind, call)
                if exchange is None:
                    return await inner(call)  # the recorded channel knows the tools
                self._player.replayed += 1
                otel.get_current_span().set_attribute("toolhub.replayed", True)
                return await self._play(exchange, call)

            return bounded(handle)

        return wrap

    def describe(self, name: str, server: RecordedServer) -> None:
        """There is nothing to record."""

    async def _find(self, kind: Kind, call: Call) -> Exchange | None:
        """Return the recorded exchange; None for a list of tools that is only known from the server's description."""
        arguments, params, era = request_of(call)
        if self._secrets:
            arguments, params = redact_json(arguments, self._secrets), redact_json(params, self._secrets)
        key = key_of(kind, call.server, call.tool, arguments, params, era)
        recording = self.recording
        if recording is None or self._binding.locked():  # calls that came earlier go first
            async with self._binding:
                recording = self.recording or await self._player.beginning_with(key, uses=kind == "call")
                if kind == "call":
                    self.recording = recording
        history = self._histories.get(call.server, _NO_HISTORY)
        found = recording.find(history, key) if recording is not None else []
        if not found:
            if call.tool == "tools/list" and kind == "request":
                return None
            self._player.missed += 1
            why = await self._explain(kind, call, arguments, key)
            logger.warning("task %s: %s", call.task_id, why)
            raise NotRecorded(why, server=call.server, tool=call.tool)
        # Equal requests get the recorded answers in their order, and then the last one again.
        place = (history, key)
        given = self._given.get(place, 0)
        self._given[place] = given + 1
        exchange = found[min(given, len(found) - 1)]
        if exchange.changes:
            self._histories[call.server] = history_after(history, key)
            self._changes.setdefault(call.server, []).append(exchange)
        return exchange

    async def _play(self, exchange: Exchange, call: Call) -> Result:
        began = anyio.current_time()
        if exchange.sent == "maybe":
            call.delivery.mark_sent(began)
        for seconds, method, params in exchange.events:
            await self._wait_until(began, seconds)
            await _tell(call, method, params)
        if exchange.result is None and exchange.error is None:
            await anyio.sleep_forever()  # its caller cancelled it, or will time out again
        await self._wait_until(began, exchange.seconds)
        if exchange.error is not None:
            raise error_from_wire({**exchange.error, "call_id": call.id})
        assert exchange.result is not None
        return Result(clone_json(exchange.result))

    async def _wait_until(self, began: float, seconds: float) -> None:
        if self._time_scale:
            await anyio.sleep_until(began + seconds * self._time_scale)

    # --- misses -----------------------------------------------------------------------------------------------------

    async def _explain(self, kind: Kind, call: Call, arguments: Any, key: bytes) -> str:
        recording = self.recording
        if recording is None:  # a task without a recording: the nearest call of any of them
            paths = self._player.paths
            recording = await self._player.read(paths[0])
            for path in paths[1:]:
                if any(one.server == call.server and one.tool == call.tool for one in recording.exchanges):
                    break
                recording = await self._player.read(path)
        what = f"{call.server}/{call.tool} {_shown(arguments)}"
        said = f"the cassette has no recording of {what}"
        return f"{said}: {self._difference(recording, kind, call, arguments, key)} ({recording.path.name})"

    def _difference(self, recording: Recording, kind: Kind, call: Call, arguments: Any, key: bytes) -> str:
        same_server = [one for one in recording.exchanges if one.server == call.server and one.kind == kind]
        if not same_server:
            known = ", ".join(sorted({one.server for one in recording.exchanges})) or "none"
            return f"nothing of server {call.server!r} was recorded; there is: {known}"
        same_tool = [one for one in same_server if one.tool == call.tool]
        if not same_tool:
            known = ", ".join(sorted({one.tool for one in same_server}))
            return f"this tool was not called when it was recorded; the calls were of: {known}"
        same_call = next((one for one in same_tool if one.key == key), None)
        if same_call is not None:
            return self._other_history(recording, same_call)
        wanted = _text(arguments)[:_COMPARED_CHARS]
        history = self._histories.get(call.server, _NO_HISTORY)
        # The calls that could come now are nearer than those that need other calls first.
        same_tool.sort(key=lambda one: recording.histories[one.n] != history)
        nearest = max(same_tool[:_COMPARED], key=lambda one: _likeness(wanted, _text(one.arguments)[:_COMPARED_CHARS]))
        return f"the nearest is call {nearest.n}, where {_differing(arguments, nearest)}"

    def _other_history(self, recording: Recording, exchange: Exchange) -> str:
        then, now = recording.changes_before(exchange), self._changes.get(exchange.server, [])
        place = next((at for at, (one, other) in enumerate(zip(then, now, strict=False)) if one.key != other.key), None)
        if place is None:
            place = min(len(then), len(now))
        recorded = f"call {then[place].n}, {_name(then[place])}," if place < len(then) else "no call"
        replayed = _name(now[place]) if place < len(now) else "no call"
        return (
            f"call {exchange.n} is equal, but other calls on this server came before it, and they may have changed its "
            f"state. At place {place + 1} of these calls there was {recorded} in the recording, and {replayed} now"
        )


def _name(exchange: Exchange) -> str:
    return f"{exchange.tool} {_shown(exchange.arguments)}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)


def _shown(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).quick_ratio()


def _differing(arguments: Mapping[str, Any], nearest: Exchange) -> str:
    """Say how arguments differ from recorded ones."""
    recorded = nearest.arguments
    names = [name for name in {**recorded, **arguments} if _part(recorded, name) != _part(arguments, name)]
    if not names:
        return "the arguments are equal, but the kind of client or another parameter differs"
    return "; ".join(f"{name!r} was {_part(recorded, name)} and is now {_part(arguments, name)}" for name in names[:4])


def _part(arguments: Mapping[str, Any], name: str) -> str:
    return _shown(arguments[name]) if name in arguments else "not there"


async def _tell(call: Call, method: str, params: Json) -> None:
    """Tell the caller what the server told when it was recorded."""
    if call.relayed is not None:
        if method != "notifications/progress":
            call.relayed.requester.notify(method, dict(params))
            return
        token = ((call.relayed.params or {}).get("_meta") or {}).get("progressToken")
        if token is not None:
            call.relayed.requester.notify(method, {**params, "progressToken": token})
    elif method == "notifications/progress" and call.on_progress is not None:
        await call.on_progress(params.get("progress", 0.0), params.get("total"), params.get("message"))
    elif method == "notifications/message" and call.on_log is not None:
        await call.on_log(dict(params))


class _RecordedChannel:
    """A server as it was recorded. It lists its tools; calls are answered before they come here."""

    def __init__(self, described: Description) -> None:
        self.info = described.info or _UNKNOWN_SERVER
        self.pid: int | None = None
        self.on_tools_changed: Any = None
        self.listeners: Collection[Listener] = ()
        self._described = described

    async def list_tools(self) -> list[Json]:
        if self._described.tools is None:
            raise NotRecorded(f"the tools of server {self._described.describes!r} were not listed when it was recorded")
        return [clone_json(tool) for tool in self._described.tools]

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        on_progress: ProgressFn | None = None,
        on_log: LogFn | None = None,
    ) -> Json:
        if method == "tools/list":
            return {"tools": await self.list_tools()}
        raise Refused(-32601, f"{method} is not recorded")

    async def relay(self, relayed: RelayedRequest) -> Json:
        if relayed.method == "subscriptions/listen":
            await anyio.sleep_forever()
        return await self.request(relayed.method, relayed.params)

    async def knows_modern_era(self) -> bool:
        return self.info.era == "modern"

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Nothing listens."""

    async def wait_closed(self) -> None:
        await anyio.sleep_forever()

    def exit_info(self) -> ExitInfo:
        return ExitInfo()
