"""A call that an HTTP server refuses for its load keeps the status and the Retry-After."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from real_processes import HubFactory

from toolhub import Result, ServerSpec
from toolhub.overload import META, OverloadSignal, overload_in
from toolhub.sessions.session import ERROR_META

pytestmark = pytest.mark.anyio

CALLED = {"content": [{"type": "text", "text": "fine"}]}
ITSELF = {"name": "busy", "version": "1"}
SET_UP = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": ITSELF}


@dataclass
class Refusal:
    """How calls are answered. body: None for HTML."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


@contextmanager
def refusing(refusal: Refusal) -> Iterator[ServerSpec]:
    """An MCP server that refuses the first call and answers the others."""
    refusals = [refusal]

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            method = message["method"]
            if "id" not in message:
                self._answer(202)
            elif method == "tools/call" and refusals:
                told = refusals.pop()
                html = told.body is None
                self._answer(told.status, b"<p>Busy" if html else json.dumps(told.body).encode(), html, told.headers)
            elif result := {"initialize": SET_UP, "tools/call": CALLED}.get(method):
                self._answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())
            else:
                error = {"code": -32601, "message": "Method not found"}
                self._answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())

        def do_GET(self) -> None:
            self._answer(405)

        do_DELETE = do_GET

        def _answer(
            self, status: int, body: bytes = b"", is_html: bool = False, headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-type", "text/html" if is_html else "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield ServerSpec(name="remote", url=f"http://127.0.0.1:{server.server_address[1]}/mcp", stateful=False)
        finally:
            server.shutdown()
            thread.join()


def said(code: int, **data: Any) -> Any:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "Too many sessions.", **data}}


async def refused(hubs: HubFactory, refusal: Refusal) -> Result:
    """The result of a call that is refused; the next one must be answered."""
    with refusing(refusal) as spec:
        async with hubs.task(spec) as task:
            result = await task.call("remote", "echo", {})
            assert (await task.call("remote", "echo", {})).text == "fine"
    assert result.is_error
    return result


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refused_call_says_for_how_long(status: int, hubs: HubFactory) -> None:
    result = await refused(hubs, Refusal(status, {"retry-after": "7"}))
    assert result.raw["_meta"][META] == 7
    assert overload_in(result.raw) == OverloadSignal(7)
    assert f"HTTP {status}" in result.text and "try again in 7 s" in result.text


async def test_a_date_is_a_time_from_now(hubs: HubFactory) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    pressure = overload_in((await refused(hubs, Refusal(429, {"retry-after": later}))).raw)
    assert pressure is not None and pressure.retry_after is not None
    assert 0 < pressure.retry_after <= 3600


@pytest.mark.parametrize("headers", [{}, {"retry-after": "soon"}])
async def test_a_refusal_without_a_time_is_pressure_all_the_same(headers: dict[str, str], hubs: HubFactory) -> None:
    result = await refused(hubs, Refusal(429, headers))
    assert result.raw["_meta"][META] == 0
    assert overload_in(result.raw) == OverloadSignal()


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({}, {"status": 429, "retry_after": 3}),
        ({"data": {"plan": "free", "retry_after": 9}}, {"status": 429, "retry_after": 9, "plan": "free"}),
        ({"data": "later"}, {"status": 429, "retry_after": 3, "data": "later"}),
    ],
)
async def test_what_the_server_says_itself_is_kept(own: dict[str, Any], told: Any, hubs: HubFactory) -> None:
    result = await refused(hubs, Refusal(429, {"retry-after": "3"}, said(-32050, **own)))
    assert result.text == "Too many sessions."
    assert result.raw["_meta"][ERROR_META] == {"code": -32050, "message": "Too many sessions.", "data": told}
    assert overload_in(result.raw) == OverloadSignal(told["retry_after"])


@pytest.mark.parametrize("code", [-32000, -32600])
async def test_a_refused_call_is_not_the_end_of_the_session(code: int, hubs: HubFactory) -> None:
    result = await refused(hubs, Refusal(429, {"retry-after": "3"}, said(code)))
    assert result.text == "Too many sessions." and result.raw["_meta"][ERROR_META]["code"] == code
    assert overload_in(result.raw) == OverloadSignal(3)


@pytest.mark.parametrize("body", [{"detail": "busy"}, {"error": "busy"}, {"error": {"code": "x", "message": 1}}, []])
async def test_json_that_is_no_error_of_the_protocol_is_not_taken_for_one(body: Any, hubs: HubFactory) -> None:
    result = await refused(hubs, Refusal(503, {"retry-after": "2"}, body))
    assert overload_in(result.raw) == OverloadSignal(2)
    assert "HTTP 503" in result.text


async def test_another_status_is_no_pressure(hubs: HubFactory) -> None:
    result = await refused(hubs, Refusal(500, {"retry-after": "7"}))
    assert META not in result.raw["_meta"]
    assert overload_in(result.raw) is None
