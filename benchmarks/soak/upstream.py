"""An MCP server over HTTP on the loopback interface that can be told to fail. A worker role.

The least that a hub needs: JSON answers, a session id, no stream of its own. The ways to fail apply to every third
call, for as long as they are set: `429` and `500` refuse before anything is executed; `cut` ends the connection in the
middle of the answer; `drip` sends the answer byte by byte; `wrong id` answers another call.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchmarks.common.result import Json
from benchmarks.common.worker_main import Act
from benchmarks.soak.ledger import append
from benchmarks.soak.tools import answered, handshake

PAGE = "A page of the soak"
_DRIP_S = 0.02
# One call in so many fails, as at a service with problems.
_SPOILED_EACH = 3
_REASONS = {200: "OK", 202: "Accepted", 405: "Method Not Allowed", 429: "Too Many Requests", 500: "Server Error"}


class Upstream:
    def __init__(self, ledger: str) -> None:
        self._ledger = ledger
        self._calls = 0
        self.how = ""
        self.spoiled = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, OSError):
            while await self._exchange(reader, writer):
                pass
        writer.close()
        with suppress(ConnectionError, OSError):
            await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request. Return False to end the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method = head[0].split(" ")[0]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET" and headers.get("accept", "").startswith("text/html"):  # a browser
            return await _send(writer, 200, f"<h1>{PAGE}</h1>".encode(), kind="text/html")
        if method != "POST":
            return await _send(writer, 405 if method == "GET" else 200)
        message = json.loads(body)
        if "id" not in message:
            return await _send(writer, 202)
        if message["method"] != "tools/call":
            answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": handshake(message)}).encode()
            session = uuid.uuid4().hex if message["method"] == "initialize" else ""
            return await _send(writer, 200, answer, session=session)
        return await self._call(writer, message)

    async def _call(self, writer: asyncio.StreamWriter, message: Any) -> bool:
        self._calls += 1
        how = self.how if self._calls % _SPOILED_EACH == 0 else ""
        self.spoiled += bool(how)
        if how in ("429", "500"):
            return await _send(writer, int(how))
        key = message["params"]["arguments"]["key"]
        append(self._ledger, key.encode() + b"\n")
        answer = answered({"id": 10**9} if how == "wrong id" else message, key)
        if how == "cut":
            return await _send(writer, 200, answer, sent=len(answer) // 2)
        return await _send(writer, 200, answer, pause=_DRIP_S if how == "drip" else 0.0)


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes = b"",
    *,
    session: str = "",
    kind: str = "application/json",
    sent: int | None = None,
    pause: float = 0.0,
) -> bool:
    """sent: how many bytes of the body are sent before the connection is ended; None: all. pause: before each byte."""
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"content-length: {len(body)}", f"content-type: {kind}"]
    lines += [f"mcp-session-id: {session}"] if session else []
    lines += ["retry-after: 1"] if status == 429 else []
    writer.write("\r\n".join([*lines, "", ""]).encode())
    if pause:
        for byte in body:
            await asyncio.sleep(pause)
            writer.write(bytes([byte]))
    else:
        writer.write(body[:sent])
    await writer.drain()
    return sent is None


@asynccontextmanager
async def open_upstream(ledger: str) -> AsyncIterator[Act]:
    """Answers ``{"how": "429"}`` (or "", for as it should be) with its port and how many calls were spoiled so far."""
    upstream = Upstream(ledger)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, backlog=512)

    async def act(request: Json) -> Json:
        upstream.how = request["how"]
        return {"port": server.sockets[0].getsockname()[1], "spoiled": upstream.spoiled}

    try:
        yield act
    finally:
        server.close()
