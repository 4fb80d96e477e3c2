"""A server on this process's stdin and stdout: like the SDK's `stdio_server`, but without threads.

All waiting is done by the event loop; see `stdio_lines`. As with the SDK, a line that is not JSON-RPC is skipped, an
invalid byte is read as U+FFFD, and the server ends when stdin ends. Unlike with the SDK, requests that came before the
end of stdin are still answered if that takes only a moment, SIGTERM closes what the server holds (sandboxes, browsers),
and a result that cannot be written as JSON fails its call, not the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import anyio
from mcp.server import MCPServer
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from toolhub_servers.serving.stdio_lines import LineReader, LineWriter, take_stdio

# After the end of stdin, requests that came just before it get this time: `printf '...' | python -m toolhub_servers
# clock`.
_LAST_ANSWERS_S = 1.0
# The request that a server answers when the client leaves.
_LISTENING = "subscriptions/listen"

logger = logging.getLogger(__name__)


def run(server: MCPServer) -> None:
    """Serve one client until the end of its stdin. On SIGTERM, close what is open and die of the signal."""
    if anyio.run(serve_stdio, server):
        os.kill(os.getpid(), signal.SIGTERM)


async def serve_stdio(server: MCPServer) -> bool:
    """Serve one client until the end of its stdin or SIGTERM; return whether it was SIGTERM. A second one kills."""
    source, sink = take_stdio()
    asked = _Asked()
    lines = LineReader(source)
    writer = LineWriter(sink, on_broken=lines.end)
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        loop.remove_signal_handler(signal.SIGTERM)
        asked.forget()
        lines.end()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, terminate)
    low = server._lowlevel_server  # the SDK (2.3) has no public name for it
    await low.run(_Requests(lines, asked), _Answers(writer, asked), low.create_initialization_options())
    loop.remove_signal_handler(signal.SIGTERM)
    return is_terminated


class _Asked:
    """The requests that wait for their answers."""

    def __init__(self) -> None:
        self._ids: set[RequestId] = set()
        self._settled = anyio.Event()

    def received(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest) and message.method != _LISTENING:
            self._ids.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            given_up = (message.params or {}).get("requestId")
            if isinstance(given_up, int | str):
                self._settle(given_up)

    def sent(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._settle(message.id)

    def forget(self) -> None:
        """Whether no request waits."""
        self._ids.clear()
        self._settled.set()

    async def wait_settled(self) -> None:
        while self._ids:
            self._settled = anyio.Event()
            await self._settled.wait()

    def _settle(self, number: RequestId) -> None:
        self._ids.discard(number)
        self._settled.set()


class _Stream(ABC):
    """The context-manager half of the SDK's stream protocols."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    @abstractmethod
    async def aclose(self) -> None: ...


class _Requests(_Stream):
    """The messages that the client sends."""

    def __init__(self, lines: LineReader, asked: _Asked) -> None:
        self._lines = lines
        self._asked = asked

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage:
        """Return the next message.

        Raises EndOfStream, at which the SDK gives up all requests that it has not answered.
        """
        try:
            while (message := _parsed(await self._lines.receive())) is None:
                pass
        except anyio.EndOfStream:
            with anyio.move_on_after(_LAST_ANSWERS_S):
                await self._asked.wait_settled()
            raise
        self._asked.received(message)
        return SessionMessage(message)

    async def aclose(self) -> None:
        self._lines.end()


class _Answers(_Stream):
    """The messages that the server sends."""

    def __init__(self, writer: LineWriter, asked: _Asked) -> None:
        self._writer = writer
        self._asked = asked

    async def send(self, item: SessionMessage) -> None:
        """Raises BrokenResourceError when the client is gone."""
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        await self._writer.send(text.encode() + b"\n")
        self._asked.sent(item.message)

    async def aclose(self) -> None:
        await self._writer.drain()


def _parsed(line: bytes) -> JSONRPCMessage | None:
    """Return the message; None for a line that is not a message."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as exc:
        if line.isascii():
            logger.debug("skipped a line that is not a message: %s", exc)
            return None
    try:  # pydantic refuses a whole line because of one invalid byte
        return jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
    except ValidationError as exc:
        logger.debug("skipped a line that is not a message: %s", exc)
        return None
