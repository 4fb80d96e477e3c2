"""HTTP servers that cannot be used say so in a StartError: which address, which status, and no secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from real_processes import HubFactory, fixture

from toolhub import ServerSpec, StartError

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("transport", ["http", "sse"])


@contextmanager
def answering(status: int, body: bytes = b"") -> Iterator[int]:
    """A server that answers everything with one status; gives its port."""

    class Refuser(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuser) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


async def refusal_of(hubs: HubFactory, transport: Any, port: int) -> str:
    spec = ServerSpec(
        name="remote",
        transport=transport,
        url=f"http://user:hunter2pass@127.0.0.1:{port}/mcp?key=hunter2query",
        headers={"Authorization": "Bearer hunter2header"},
    )
    async with hubs.task(spec, fixture("echo")) as task:
        with pytest.raises(StartError) as caught:
            await task.call("remote", "echo", {"text": ""})
        assert (await task.call("echo", "echo", {"text": "fine"})).text == "fine"
    assert caught.value.sent == "no"
    message = str(caught.value)
    assert "server 'remote' did not start" in message
    assert "hunter2" not in message
    assert f"http://127.0.0.1:{port}/mcp" in message
    return message


@both
async def test_a_refused_connection_names_the_address(transport: str, hubs: HubFactory, closed_port: int) -> None:
    assert "connect" in await refusal_of(hubs, transport, closed_port)


@both
@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
async def test_a_status_is_told(transport: str, status: int, hubs: HubFactory) -> None:
    with answering(status) as port:
        assert f"HTTP {status}" in await refusal_of(hubs, transport, port)


@both
async def test_an_answer_that_is_no_mcp_is_told(transport: str, hubs: HubFactory) -> None:
    with answering(200, b"<html>Welcome to the captive portal</html>") as port:
        assert "text/html" in await refusal_of(hubs, transport, port)
