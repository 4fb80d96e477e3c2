"""An HTTP server cannot make the hub hold more of an answer than `limits.max_result_bytes`, however it is sent."""

from __future__ import annotations

import functools
import json
import queue
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from real_processes import HubFactory, fixture

from toolhub import ServerSpec, SessionLost, StartError
from toolhub.config.server import RestartSettings

pytestmark = pytest.mark.anyio

LIMIT = 1_000_000
# Of the hub, for one answer: what has arrived, its copy as one text, and the message made of it.
MOST_MEMORY = 24 * 1024 * 1024
HUGE = 315_000_000
SET_UP = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bomb", "version": "1"},
}
Send = Callable[[bytes], object]
AT_ONCE = RestartSettings(backoff_s=0, max_deaths=1000)


def result_of(size: int, request: Any) -> Iterator[bytes]:
    """A JSON-RPC result with a text of so many bytes, in pieces."""
    yield f'{{"jsonrpc":"2.0","id":{request},"result":{{"content":[{{"type":"text","text":"'.encode()
    piece = b"x" * 65536
    for start in range(0, size, len(piece)):
        yield piece[: size - start]
    yield b'"}]}}'


@functools.cache
def bomb() -> bytes:
    """HUGE bytes of JSON in some 306 KB."""
    packer = zlib.compressobj(9, wbits=31)  # gzip
    return b"".join([*map(packer.compress, result_of(HUGE, 2)), packer.flush()])


class Bomber(BaseHTTPRequestHandler):
    """An MCP server, streamable HTTP at /mcp and SSE at /sse, whose tools answer with too much.

    The tools are the ways to send it; `echo` answers with as many bytes as it is asked for, in the usual way.
    """

    protocol_version = "HTTP/1.1"
    streams: queue.Queue[Any] = queue.Queue()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = message["method"], message.get("params", {})
        if self.path != "/mcp":
            return self._post_beside_a_stream(message)
        if "id" not in message:
            return self._head(202, length=0)
        if method == "initialize":
            return self._json({"jsonrpc": "2.0", "id": message["id"], "result": SET_UP})
        size = params.get("arguments", {}).get("size", HUGE)
        body = result_of(size, message["id"])
        match params.get("name"):
            case "echo":
                self._chunked("application/json", body)
            case "events":
                self._chunked("text/event-stream", events(body))
            case "event in many lines":
                self._chunked("text/event-stream", (b"data: x\r\n" * 4096 for _ in range(9000)))
            case "event in another alphabet":
                self._chunked("text/event-stream; charset=utf-16", events(body))
            case "packed":
                self._packed("application/json", bomb())
            case "packed events":
                self._packed("text/event-stream", bomb())
            case "error":
                self._chunked("application/json", body, status=500)
            case "too many requests":
                self._chunked("application/json", body, status=429)

    def do_GET(self) -> None:
        if self.path == "/mcp":
            return self._head(405, length=0)
        messages: queue.Queue[Any] = queue.Queue()
        type(self).streams.put(messages)
        self._chunked("text/event-stream", self._events_of(messages))

    def do_DELETE(self) -> None:
        self._head(200, length=0)

    def _events_of(self, messages: queue.Queue[Any]) -> Iterator[bytes]:
        yield b"event: endpoint\r\ndata: /post\r\n\r\n"
        while (pieces := messages.get(timeout=60)) is not None:
            yield from pieces

    def _post_beside_a_stream(self, message: Any) -> None:
        messages = type(self).streams.queue[-1]
        if message["method"] == "initialize":
            messages.put(events(iter([json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": SET_UP}).encode()])))
        elif message["method"] == "tools/call":
            if message["params"]["name"] == "answer to the post":
                return self._chunked("text/event-stream", (b"data: x\r\n\r\n" * 4096 for _ in range(9000)))
            messages.put(events(result_of(message["params"]["arguments"].get("size", HUGE), message["id"])))
        self._head(202, length=0)

    def _head(self, status: int, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length is not None:
            self.send_header("content-length", str(length))
        self.end_headers()

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._head(200, len(body), content_type="application/json")
        self.wfile.write(body)

    def _packed(self, kind: str, body: bytes) -> None:
        self._head(200, len(body), content_type=kind, content_encoding="gzip")
        self._write(body)

    def _chunked(self, kind: str, pieces: Iterator[bytes], status: int = 200) -> None:
        self._head(status, content_type=kind, transfer_encoding="chunked")
        for piece in pieces:
            if not self._write(b"%x\r\n%s\r\n" % (len(piece), piece)):
                return
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> bool:
        """Whether there was somebody to read it."""
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True
            return False
        return True

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


def events(body: Iterator[bytes]) -> Iterator[bytes]:
    """One event, after a small one."""
    yield b": hello\r\n\r\nevent: message\r\ndata: "
    yield from body
    yield b"\r\n\r\n"


@contextmanager
def bombing(path: str) -> Iterator[ServerSpec]:
    handler = type("Handler", (Bomber,), {"streams": queue.Queue()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}{path}"
            yield ServerSpec(name="remote", url=url, stateful=False, restart=AT_ONCE)
        finally:
            for messages in list(handler.streams.queue):  # type: ignore[attr-defined]
                messages.put(None)
            server.shutdown()
            thread.join()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


both = pytest.mark.parametrize("path", ["/mcp", "/sse"])
TOO_MUCH = r"more than 1000000 bytes \(limits.max_result_bytes\)"


@pytest.mark.parametrize(
    "tool",
    ["echo", "events", "event in many lines", "error", "too many requests"],
)
async def test_an_answer_without_an_end_costs_its_session_and_little_memory(tool: str, hubs: HubFactory) -> None:
    with bombing("/mcp") as spec, little_memory():
        async with hubs.task(spec, fixture("echo"), within=60, max_result_bytes=LIMIT) as task:
            with pytest.raises(SessionLost, match=TOO_MUCH) as caught:
                await task.call("remote", tool, {})
            assert caught.value.sent == "maybe"
            assert len((await task.call("remote", "echo", {"size": 1000})).text) == 1000
            assert (await task.call("echo", "echo", {"text": "fine"})).text == "fine"


@pytest.mark.parametrize("tool", ["packed", "packed events"])
async def test_a_gzip_bomb_is_not_unpacked(tool: str, hubs: HubFactory) -> None:
    assert len(bomb()) < 320_000
    with bombing("/mcp") as spec, little_memory():
        async with hubs.task(spec, within=60, max_result_bytes=LIMIT) as task:
            with pytest.raises(SessionLost, match="content-encoding 'gzip'.*Accept-Encoding: identity") as caught:
                await task.call("remote", tool, {})
            assert caught.value.sent == "maybe"
            assert len((await task.call("remote", "echo", {"size": 1000})).text) == 1000


@pytest.mark.parametrize("tool", ["message", "answer to the post"])
async def test_over_legacy_sse_an_event_or_an_answer_without_an_end_costs_its_session_and_little_memory(
    tool: str, hubs: HubFactory
) -> None:
    with bombing("/sse") as spec, little_memory():
        async with hubs.task(spec, fixture("echo"), within=60, max_result_bytes=LIMIT) as task:
            with pytest.raises(SessionLost, match=TOO_MUCH):
                await task.call("remote", tool, {})
            assert len((await task.call("remote", "message", {"size": 1000})).text) == 1000
            assert (await task.call("echo", "echo", {"text": "fine"})).text == "fine"


async def test_a_stream_that_is_compressed_unasked_is_told_at_the_start(hubs: HubFactory) -> None:
    class Packing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bomb()
            self.send_response(200)
            for name, value in {"type": "text/event-stream", "encoding": "gzip", "length": str(len(body))}.items():
                self.send_header(f"content-{name}", value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    bomb()  # made before memory is measured
    with ThreadingHTTPServer(("127.0.0.1", 0), Packing) as server, little_memory():
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            spec = ServerSpec(name="remote", url=f"http://127.0.0.1:{server.server_address[1]}/sse")
            async with hubs.task(spec, max_result_bytes=LIMIT) as task:
                with pytest.raises(StartError, match="content-encoding 'gzip'"):
                    await task.call("remote", "echo", {})
        finally:
            server.shutdown()
            thread.join()


async def test_events_are_read_as_utf_8_whatever_they_are_said_to_be(hubs: HubFactory) -> None:
    """In another alphabet the bytes that end an event are part of a letter: the count would be wrong."""
    with bombing("/mcp") as spec:
        async with hubs.task(spec, within=60, max_result_bytes=LIMIT) as task:
            assert len((await task.call("remote", "event in another alphabet", {"size": 1000})).text) == 1000


@both
async def test_answers_up_to_the_limit_come_through_one_after_the_other(path: str, hubs: HubFactory) -> None:
    tools = ("echo", "events") if path == "/mcp" else ("message", "message")
    with bombing(path) as spec:
        async with hubs.task(spec, within=60, max_result_bytes=LIMIT) as task:
            for tool in tools * 3:
                assert len((await task.call("remote", tool, {"size": LIMIT - 1000})).text) == LIMIT - 1000
            assert task.statistics().slots[0].starts == 1
