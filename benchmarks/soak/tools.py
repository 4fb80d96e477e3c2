"""The tools that the load calls: on stdio (this file run as a script, standard library alone) and as a builtin.

    python -S benchmarks/soak/tools.py LEDGER

`work` and `look` append their key to the ledger and give it back; `look` is declared read-only. `misbehave` makes the
server answer its next call with the wrong id, twice, or after a megabyte of noise; `hog` fills its memory.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.server import MCPServer

VERSION = "2025-06-18"
NOISE = b"this line is no JSON-RPC\n"
NOISE_BYTES = 1 << 20
_KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
_HOW = {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]}
_SIZE = {"type": "object", "properties": {"bytes": {"type": "integer"}}, "required": ["bytes"]}
LISTED = [
    {"name": "work", "inputSchema": _KEY},
    {"name": "look", "inputSchema": _KEY, "annotations": {"readOnlyHint": True}},
    {"name": "misbehave", "inputSchema": _HOW},
    {"name": "hog", "inputSchema": _SIZE},
]


def answered(message: Any, text: str) -> bytes:
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"


def handshake(message: Any) -> Any:
    """Return the result of a request that is not a call."""
    if message["method"] == "initialize":
        about = {"name": "soak", "version": "1"}
        return {"protocolVersion": VERSION, "capabilities": {"tools": {}}, "serverInfo": about}
    return {"tools": LISTED} if message["method"] == "tools/list" else {}


class StdioServer:
    """Answers one message after another."""

    def __init__(self, ledger: int) -> None:
        self._ledger = ledger
        self._next = ""
        self._hogged = bytearray()

    def answer(self, message: Any) -> bytes:
        """Return what goes to stdout."""
        if message["method"] != "tools/call":
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": handshake(message)}).encode() + b"\n"
        name, arguments = message["params"]["name"], message["params"].get("arguments") or {}
        if name == "misbehave":
            self._next = arguments["how"]
            return answered(message, "from the next call on")
        if name == "hog":
            self._hogged = bytearray(b"x") * arguments["bytes"]
            return answered(message, "still here")
        os.write(self._ledger, arguments["key"].encode() + b"\n")
        return self._spoiled(message, answered(message, arguments["key"]))

    def _spoiled(self, message: Any, answer: bytes) -> bytes:
        how, self._next = self._next, ""
        if how == "wrong id":
            return answered({"id": 10**9}, "of another call") + answer
        if how == "twice":
            return answer + answer
        if how == "noise":
            return NOISE * (NOISE_BYTES // len(NOISE)) + answer
        return answer


def main() -> None:
    server = StdioServer(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            sys.stdout.buffer.write(server.answer(message))
            sys.stdout.buffer.flush()


def create_server(*, ledger: str) -> MCPServer:
    """The same tools inside the hub, for a hub's config."""
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    from benchmarks.soak.ledger import append

    server = MCPServer("soak", log_level="WARNING")

    @server.tool(structured_output=False)
    async def work(key: str) -> str:
        """Executed at most once."""
        append(ledger, key.encode() + b"\n")
        return key

    @server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True))
    async def look(key: str) -> str:
        """May be repeated."""
        append(ledger, key.encode() + b"\n")
        return key

    return server


if __name__ == "__main__":
    main()
