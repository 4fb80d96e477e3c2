"""MCP clients of a served hub: the official SDK's, and one that shows every byte of the handshake era."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from served_hub import Json, ServedHub

MODES = ("legacy", "auto")
PROTOCOL = "2025-11-25"


@asynccontextmanager
async def mcp_client(
    hub: ServedHub, mode: str = "legacy", *, headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Connect the SDK's client to the hub at `/mcp`. The modern era has no sessions, so it names its own task."""
    own_task = {"X-Toolhub-Task": f"test-{uuid.uuid4().hex}"} if mode == "auto" else {}
    given = hub.headers | own_task | dict(headers or {})
    async with httpx2.AsyncClient(headers=given, timeout=httpx2.Timeout(60)) as http:
        # By itself the SDK's client refuses answers over 1 MiB.
        transport = streamable_http_client(f"{hub.http}/mcp", http_client=http, max_sse_event_size=None)
        async with Client(transport, mode=mode, **options) as client:
            yield client


def text_of(result: Any) -> str:
    """The text of a CallToolResult."""
    assert not result.is_error, result
    (block,) = result.content
    return str(block.text)


class RawClient:
    """One session of the handshake era, spoken by hand."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client
        self._headers = {"Accept": "application/json, text/event-stream"}
        hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        self.welcome = self.request("initialize", hello)
        self._headers["Mcp-Protocol-Version"] = PROTOCOL
        self._post({"method": "notifications/initialized"})

    def request(self, method: str, params: Json | None = None) -> Json:
        """Send a request and return the JSON-RPC response, result or error, as it stood on the wire."""
        answer = self._post({"id": 1, "method": method, "params": params or {}})
        data = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
        (response,) = (message for message in map(json.loads, filter(str.strip, data)) if message.get("id") == 1)
        assert isinstance(response, dict)
        return response

    def delete(self) -> int:
        """End the session."""
        return self._client.delete("/mcp", headers=self._headers).status_code

    def status_of(self, method: str, params: Json | None = None) -> int:
        """Send a request and return the HTTP status of its answer."""
        return self._send({"id": 1, "method": method, "params": params or {}}).status_code

    def _send(self, message: Json) -> httpx2.Response:
        return self._client.post("/mcp", json={"jsonrpc": "2.0", **message}, headers=self._headers)

    def _post(self, message: Json) -> httpx2.Response:
        answer = self._send(message)
        assert answer.is_success, answer.text
        if "mcp-session-id" in answer.headers:
            self._headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        return answer
