"""The stage of the proxy's tests: origins and clients that are all real sockets on loopback."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import anyio.abc
from toolhub_sandbox.proxy.rules import AllowRules, IPAddress
from toolhub_sandbox.proxy.server import run_proxy

# Nothing here takes longer than milliseconds; running into this is a failure, never slowness.
PATIENCE_S = 20.0

Handler = Callable[[anyio.abc.SocketStream], Awaitable[None]]


class Proxy:
    """A running proxy: where it listens, and a way to end it early."""

    def __init__(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        self.listener = listener
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._tasks = tasks

    def cancel(self) -> None:
        self._tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_proxy(*allow: str, **options: Any) -> AsyncIterator[Proxy]:
    """A proxy for which this process is not the hub: the origins of the tests are its, too."""
    options = {"hub_ports": frozenset} | options
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    async with anyio.create_task_group() as tasks:
        proxy = Proxy(listener, tasks)
        tasks.start_soon(lambda: run_proxy(listener, AllowRules.of(allow, profile="web"), **options))
        yield proxy
        proxy.cancel()


@asynccontextmanager
async def open_origin(handler: Handler) -> AsyncIterator[int]:
    """A TCP server in this event loop; gives its port."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError):
                await handler(stream)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def echo(stream: anyio.abc.SocketStream) -> None:
    """Send everything back until the other side ends, then say so."""
    async for data in stream:
        await stream.send(data)
    await stream.send(b"<end>")


class HttpOrigin(BaseHTTPRequestHandler):
    """Answers with the path, the headers and the body it got."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told = f"{self.command} {self.path}\n{self.headers}".encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_POST = do_GET

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def http_origin() -> Iterator[int]:
    """An HTTP server in a thread; gives its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), HttpOrigin) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(PATIENCE_S)


async def read_all(stream: anyio.abc.ByteReceiveStream) -> bytes:
    with anyio.fail_after(PATIENCE_S):
        return b"".join([data async for data in stream])


async def ask(port: int, request: bytes) -> bytes:
    """Send bytes and return all that comes back until the end."""
    async with await anyio.connect_tcp("127.0.0.1", port) as client:
        await client.send(request)
        return await read_all(client)


@asynccontextmanager
async def open_tunnel(proxy_port: int, authority: str) -> AsyncIterator[anyio.abc.SocketStream]:
    async with await anyio.connect_tcp("127.0.0.1", proxy_port) as client:
        await client.send(f"CONNECT {authority} HTTP/1.1\r\n\r\n".encode())
        await expect(client, b"HTTP/1.1 200 Connection established\r\n\r\n")
        yield client


async def expect(stream: anyio.abc.ByteReceiveStream, wanted: bytes) -> None:
    got = b""
    with anyio.fail_after(PATIENCE_S):
        while len(got) < len(wanted):
            got += await stream.receive(len(wanted) - len(got))
    assert got == wanted


def resolver(*answers: list[IPAddress]) -> Callable[[str, int], Awaitable[list[IPAddress]]]:
    """A lookup that gives one answer after the other, and fails the test when asked once too often."""
    rest = list(answers)

    async def resolve(host: str, port: int) -> list[IPAddress]:
        return rest.pop(0)

    return resolve


def open_sockets() -> set[str]:
    """The sockets that this process has, by their inodes."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {name for name in found if name.startswith("socket:")}
