"""A server made of functions, for tests of everything above the channel. Runs on any anyio backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from toolhub.channel.base import Channel, ChannelClosed, ExitInfo, OpenFailed, Refused
from toolhub.model import Json, Listener, LogFn, ProgressFn, RelayedRequest, ServerInfo

ToolFn = Callable[[Mapping[str, Any]], Awaitable[Json]]


def text_result(text: str, *, is_error: bool = False) -> Json:
    """The wire form of a one-line answer."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


class MemoryServer:
    """Each opened channel is one process. `fail_next` makes openings fail; `die()` kills the open channels."""

    def __init__(self, **tools: ToolFn) -> None:
        self.tools = tools
        self.opened = 0
        self.live: list[MemoryChannel] = []
        self.fail_next: list[str] = []
        self.may_open = anyio.Event()
        self.may_open.set()

    def die(self, exit_code: int = -9) -> None:
        for channel in list(self.live):
            channel.end(exit_code)

    @asynccontextmanager
    async def open(self, *_: object) -> AsyncIterator[Channel]:
        """Open a channel to this server, with the arguments of a `ChannelOpener` or without."""
        self.opened += 1
        await self.may_open.wait()
        if self.fail_next:
            raise OpenFailed(self.fail_next.pop(0))
        channel = MemoryChannel(self.tools, pid=1000 + self.opened)
        self.live.append(channel)
        try:
            yield channel
        finally:
            channel.end(0)
            self.live.remove(channel)


class MemoryChannel:
    """One channel of a MemoryServer."""

    def __init__(self, tools: Mapping[str, ToolFn], *, pid: int) -> None:
        self.info = ServerInfo("memory", "1", "2025-11-25", {"tools": {"listChanged": True}})
        self.pid: int | None = pid
        self.on_tools_changed: Callable[[], None] | None = None
        self.listeners: Collection[Listener] = ()
        self.calls: list[str] = []
        self._tools = tools
        self._ended = anyio.Event()
        self._exit_code: int | None = None

    def end(self, exit_code: int) -> None:
        if not self._ended.is_set():
            self._exit_code = exit_code
            self._ended.set()

    async def list_tools(self) -> list[Json]:
        return [{"name": name, "inputSchema": {"type": "object"}} for name in self._tools]

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
        if method != "tools/call" or params is None:
            raise Refused(-32601, "a memory server has tools only")
        return await self._call(params["name"], params.get("arguments") or {})

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> Json:
        if self._ended.is_set():
            raise ChannelClosed
        self.calls.append(name)
        answer: list[Json] = []

        async def work() -> None:
            answer.append(await self._tools[name](arguments))
            tasks.cancel_scope.cancel()

        async def end() -> None:
            await self._ended.wait()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(end)
        if not answer:
            raise ChannelClosed
        return answer[0]

    async def relay(self, relayed: RelayedRequest) -> Json:
        return await self.request(relayed.method, relayed.params)

    async def knows_modern_era(self) -> bool:
        return False

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Nothing listens."""

    async def wait_closed(self) -> None:
        await self._ended.wait()

    def exit_info(self) -> ExitInfo:
        return ExitInfo(exit_code=self._exit_code)
