"""HTTP servers: answers that break off, streams that are resumed, and sessions that are forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import anyio
import pytest
from real_processes import HubFactory

from toolhub import ProtocolViolation, ServerSpec, SessionLost
from toolhub.config.server import RestartSettings

pytestmark = pytest.mark.anyio


class Upstream(ThreadingHTTPServer):
    """An MCP server: `cut` sends half of its answer, `wait` answers when a cut call was told.

    `poll` ends its stream of events and answers on one that resumes it; `vanish` ends it without a place to resume.

    refusal: how calls of sessions other than the newest are answered.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.has_begun, self.may_end = Event(), Event()
        self.sessions = 0
        self.polled: Any = None
        self.refusal: tuple[int, dict[str, Any] | None] = (404, None)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: Upstream

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            return self._send(202, b"")
        method, tool = message["method"], message.get("params", {}).get("name")
        if method == "initialize":
            self.server.sessions += 1
        elif self.headers["mcp-session-id"] != str(self.server.sessions):
            status, error = self.server.refusal
            return self._send(status, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode())
        result: Any = {"content": [{"type": "text", "text": f"{tool} is answered"}]}
        if method == "initialize":
            about = {"name": "upstream", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        elif method == "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("cut", "wait")]}
        elif tool in ("poll", "vanish"):
            self.server.polled = message["id"]
            place = b"id: 7\r\nretry: 1\r\ndata: \r\n\r\n" if tool == "poll" else b": nothing\r\n\r\n"
            return self._send(200, place, kind="text/event-stream")
        elif tool == "wait":
            self.server.has_begun.set()
            self.server.may_end.wait(60)
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        return self._send(200, body, cut=tool == "cut")

    def do_GET(self) -> None:
        if self.headers["last-event-id"] != "7":
            return self._send(405, b"")
        result = {"content": [{"type": "text", "text": "poll is answered"}]}
        answer = json.dumps({"jsonrpc": "2.0", "id": self.server.polled, "result": result}).encode()
        self._send(200, b"id: 8\r\ndata: %s\r\n\r\n" % answer, kind="text/event-stream")

    def do_DELETE(self) -> None:
        self._send(200, b"")

    def _send(self, status: int, body: bytes, *, cut: bool = False, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("mcp-session-id", str(self.server.sessions))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut

    def log_message(self, *_: Any) -> None:
        """The test knows what it asked."""


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.may_end.set()
    server.shutdown()
    server.server_close()


async def test_an_answer_that_is_cut_costs_its_own_call_and_no_other(hubs: HubFactory, upstream: Upstream) -> None:
    spec = ServerSpec(name="remote", url=f"http://127.0.0.1:{upstream.server_port}/mcp")
    answers: list[str | None] = []
    async with hubs.task(spec, within=60) as task:

        async def wait() -> None:
            answers.append((await task.call("remote", "wait")).text)

        async with anyio.create_task_group() as calls:
            calls.start_soon(wait)
            await anyio.to_thread.run_sync(upstream.has_begun.wait)
            with pytest.raises(ProtocolViolation) as failed:
                await task.call("remote", "cut")
            assert (failed.value.sent, failed.value.server, failed.value.tool) == ("maybe", "remote", "cut")
            upstream.may_end.set()
        assert answers == ["wait is answered"]
        (slot,) = task.statistics().slots
        assert (slot.starts, slot.deaths) == (1, 0)


async def test_a_stream_that_ends_before_its_answer_is_resumed_where_it_ended(
    hubs: HubFactory, upstream: Upstream
) -> None:
    spec = ServerSpec(name="remote", url=f"http://127.0.0.1:{upstream.server_port}/mcp")
    async with hubs.task(spec, within=60) as task:
        assert (await task.call("remote", "poll")).text == "poll is answered"


async def test_a_stream_that_cannot_be_resumed_costs_its_own_call(hubs: HubFactory, upstream: Upstream) -> None:
    spec = ServerSpec(name="remote", url=f"http://127.0.0.1:{upstream.server_port}/mcp", stateful=False)
    upstream.may_end.set()
    async with hubs.task(spec, within=60) as task:
        with pytest.raises(SessionLost) as lost:
            await task.call("remote", "vanish")
        assert lost.value.sent == "maybe"
        assert (await task.call("remote", "wait")).text == "wait is answered"
        assert task.statistics().slots[0].starts == 1


@pytest.mark.parametrize(
    "refusal",
    [
        (404, None),
        (404, {"code": -32600, "message": "Session not found"}),
        (404, {"code": -32001, "message": "Session not found"}),
        (400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
    ],
)
async def test_a_session_that_the_server_has_forgotten_is_begun_again(
    refusal: tuple[int, dict[str, Any] | None], hubs: HubFactory, upstream: Upstream
) -> None:
    restart = RestartSettings(backoff_s=0, max_deaths=1000)
    spec = ServerSpec(
        name="remote", url=f"http://127.0.0.1:{upstream.server_port}/mcp", stateful=False, restart=restart
    )
    upstream.may_end.set()
    upstream.refusal = refusal
    async with hubs.task(spec, within=60) as task:
        await task.call("remote", "wait")
        upstream.sessions += 1  # it was restarted
        assert (await task.call("remote", "wait")).text == "wait is answered"
        assert task.statistics().slots[0].starts == 2
