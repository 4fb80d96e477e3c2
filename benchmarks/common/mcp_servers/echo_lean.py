"""The smallest MCP server: one blocking loop on the standard library. A call takes some 20 microseconds.

It speaks both generations of the protocol. A request of revision 2026-07-28 says so in its `_meta`.
"""

from __future__ import annotations

import json
import sys

VERSION, MODERN = "2025-06-18", "2026-07-28"
CACHEABLE = {"ttlMs": 0, "cacheScope": "private"}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        params = message.get("params") or {}
        if message["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": params["arguments"]["text"]}], "isError": False}
        elif message["method"] == "initialize":
            result = {
                "protocolVersion": VERSION,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "lean", "version": "1"},
            }
        elif message["method"] == "server/discover":
            result = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, **CACHEABLE}
        elif message["method"] == "tools/list":
            result = {"tools": [{"name": "echo", "inputSchema": SCHEMA}], **CACHEABLE}
        else:
            result = None
        if result and "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {}):
            result["resultType"] = "complete"
        outcome = {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
        answer = {"jsonrpc": "2.0", "id": message["id"], **outcome}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
