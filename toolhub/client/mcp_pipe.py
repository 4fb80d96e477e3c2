"""An MCP client at stdin and stdout of this process, served by the gateway of a hub elsewhere.

Each message goes to the hub's `/mcp` as it came, and each message of the hub is written as it came. A message is read
only to see what HTTP repeats in headers. The requests use one task of the hub, which ends with this process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import anyio.abc

from toolhub.client.address import Address, wait_readable
from toolhub.client.transport import Transport
from toolhub.errors import ToolhubError

_READ_BYTES = 1 << 16
_EVENT_END = b"\r\n\r\n"
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
# What the hub's Streamable HTTP wants repeated in the header `Mcp-Name`.
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_CLOSED = -32000
# A stream that has ended is resumed after this time.
_RESUME_S = 0.5


class McpPipe:
    """See the module's text."""

    def __init__(self, transport: Transport, task_id: str, tasks: anyio.abc.TaskGroup) -> None:
        self._transport = transport
        self._tasks = tasks
        self._headers = {"accept": "application/json, text/event-stream", "x-toolhub-task": task_id}
        # A client at a pipe sends no headers, so the hub must not expect those that repeat a tool's arguments.
        self._headers["x-toolhub-stdio"] = "1"
        self._running: dict[Any, anyio.CancelScope] = {}

    async def run(self) -> None:
        """Serve until stdin ends."""
        async for line in _lines(sys.stdin.fileno()):
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if not isinstance(message, dict):
                continue
            method, number = message.get("method"), message.get("id")
            if method == "initialize":
                await self._request(message, line)  # what follows needs the session that it begins
            elif method is not None and number is not None:
                self._tasks.start_soon(self._request, message, line)
            else:
                self._cancel_modern(message)
                await self._post(line, self._headers)
            if method == "notifications/initialized":
                self._tasks.start_soon(self._listen)

    async def _request(self, message: dict[str, Any], line: bytes) -> None:
        number = message["id"]
        headers = self._headers | _modern_headers(message)
        try:
            with anyio.CancelScope() as scope:
                self._running[number] = scope
                async with self._transport.exchange("POST", "/mcp", headers, line) as (status, answered, parts):
                    if "mcp-session-id" in answered:
                        self._headers["mcp-session-id"] = answered["mcp-session-id"]
                    if "event-stream" in answered.get("content-type", ""):
                        last = await self._pass_on(parts)
                    else:
                        _write(_as_answer(number, status, b"".join([part async for part in parts])))
                        return
                while last:  # the server has closed the stream early
                    await anyio.sleep(_RESUME_S)
                    last = await self._resume(last)
        except ToolhubError as exc:
            _write(_error(number, str(exc)))
        finally:
            self._running.pop(number, None)

    async def _listen(self) -> None:
        """Receive what belongs to no request."""
        while True:
            try:
                await self._resume("")
            except ToolhubError:
                return  # the next request says it
            await anyio.sleep(_RESUME_S)

    async def _resume(self, last: str) -> str:
        headers = self._headers | {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
        async with self._transport.exchange("GET", "/mcp", headers) as (_, _, parts):
            return await self._pass_on(parts)

    async def _pass_on(self, parts: AsyncIterator[bytes]) -> str:
        """Write the messages of a stream. Return the id of the last event; "" if its answer has come."""
        rest, last = b"", ""
        async for part in parts:
            *events, rest = (rest + part).split(_EVENT_END)
            for event in events:
                lines = (line for line in event.split(b"\r\n") if b": " in line and not line.startswith(b":"))
                fields = dict(line.split(b": ", 1) for line in lines)
                last = fields.get(b"id", last.encode()).decode()
                data = fields.get(b"data", b"")
                if not data:
                    continue
                _write(data)
                message = json.loads(data)
                if "method" not in message:
                    last = ""
        return last

    async def _post(self, line: bytes, headers: Mapping[str, str]) -> None:
        try:
            async with self._transport.exchange("POST", "/mcp", headers, line) as (_, _, parts):
                async for _ in parts:
                    pass
        except ToolhubError as exc:
            print(f"toolhub: {exc}", file=sys.stderr)  # noqa: T201  # there is no one to answer

    def _cancel_modern(self, message: dict[str, Any]) -> None:
        """Without a session, the end of the connection is what cancels a request."""
        if message.get("method") == "notifications/cancelled" and "mcp-session-id" not in self._headers:
            scope = self._running.get((message.get("params") or {}).get("requestId"))
            if scope is not None:
                scope.cancel()


def _modern_headers(message: Mapping[str, Any]) -> dict[str, str]:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(_VERSION_KEY) if isinstance(meta, dict) else None
    if not isinstance(version, str) or message["method"] == "initialize":
        return {}
    headers = {"mcp-protocol-version": version, "mcp-method": str(message["method"])}
    name = (params or {}).get(_NAMED.get(str(message["method"]), ""))
    if isinstance(name, str):
        headers["mcp-name"] = _as_header(name)
    return headers


def _as_header(value: str) -> str:
    if value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?base64?"):
        return value
    from base64 import b64encode

    return f"=?base64?{b64encode(value.encode()).decode()}?="


def _as_answer(number: Any, status: int, body: bytes) -> bytes:
    """Return the hub's JSON as the answer to a request. It does not know the id of what it has refused early."""
    try:
        answer = json.loads(body)
    except ValueError:
        return _error(number, f"the hub answered with status {status}")
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or (answer.get("id") == number and number is not None):
        return body
    return _error(number, str(error.get("message")), error.get("code", _CLOSED))


def _error(number: Any, message: str, code: int = _CLOSED) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}).encode()


def _write(message: bytes) -> None:
    """Write one line. A client that does not read stops this process, which serves no one else."""
    data = memoryview(message + b"\n")
    while data:
        data = data[os.write(1, data) :]


async def _lines(fd: int) -> AsyncIterator[bytes]:
    os.set_blocking(fd, False)
    rest: list[bytes] = []
    while True:
        await wait_readable(fd)  # type: ignore[arg-type]  # older versions of anyio say that it must be a socket
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            continue
        if not chunk:
            return
        head, newline, tail = chunk.partition(b"\n")
        rest.append(head)
        if newline:
            *lines, last = [b"".join(rest), *tail.split(b"\n")]
            rest = [last]
            for line in filter(bytes.strip, lines):
                yield line


async def serve_pipe(hub: str, token: str | None, task_id: str) -> None:
    """Serve the client at stdin and stdout from an open task of a hub elsewhere, until stdin ends."""
    transport = Transport(Address.parse(hub), token)
    async with anyio.create_task_group() as tasks:
        await McpPipe(transport, task_id, tasks).run()
        tasks.cancel_scope.cancel()
