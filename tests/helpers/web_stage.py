"""The stage of the web client's tests: origins that are real sockets on loopback, and names that lead to them."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import anyio
import anyio.abc
import httpcore2
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener
from toolhub_servers.web.client import Web, open_private_web
from toolhub_servers.web.guard import Guard, GuardedBackend, Resolve
from toolhub_servers.web.settings import WebSettings

# Nothing here takes longer than milliseconds; running into this is a failure, never slowness.
PATIENCE_S = 60.0
PUBLIC = "93.184.216.34"


@dataclass(frozen=True)
class Asked:
    """A request as an origin got it. headers: names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


class Hangup(Exception):
    """FunctionRaised by an answer: close the connection after these bytes."""

    def __init__(self, last: bytes = b"") -> None:
        self.last = last


Answer = Callable[[Asked], Awaitable[bytes]]


@dataclass
class Origin:
    """A small HTTP/1.1 server that records what it is asked."""

    answer: Answer
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    at_once: int = 0
    most_at_once: int = 0
    port: int = 0

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, stream: anyio.abc.ByteStream) -> None:
        self.connections += 1
        number, reader = self.connections, BufferedByteReceiveStream(stream)
        async with stream:
            with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                while True:
                    asked = await read_request(reader, number)
                    self.asked.append(asked)
                    self.at_once += 1
                    self.most_at_once = max(self.most_at_once, self.at_once)
                    try:
                        answer = await self.answer(asked)
                    except Hangup as hangup:
                        await stream.send(hangup.last)
                        return
                    finally:
                        self.at_once -= 1
                    await stream.send(answer)


async def read_request(reader: BufferedByteReceiveStream, connection: int) -> Asked:
    head = (await reader.receive_until(b"\r\n\r\n", 65536)).decode()
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.receive_exactly(int(headers.get("content-length", 0)))
    return Asked(method, target, headers, body, connection)


def http(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """An answer; `_` in the names of headers is `-`."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def script(*answers: bytes | Hangup) -> Answer:
    """Answers one after the other; the last again and again."""
    rest = list(answers)

    async def answer(asked: Asked) -> bytes:
        said = rest.pop(0) if len(rest) > 1 else rest[0]
        if isinstance(said, Hangup):
            raise said
        return said

    return answer


@asynccontextmanager
async def open_origin(answer: Answer, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Origin]:
    origin = Origin(answer)
    async with listening(origin.serve, tls=tls) as origin.port:
        yield origin


@asynccontextmanager
async def listening(
    serve: Callable[[Any], Awaitable[None]], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve connections in this event loop; gives the port."""
    listener: anyio.abc.Listener[Any] = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    if tls is not None:
        listener = TLSListener(listener, tls, standard_compatible=False)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        try:
            yield port
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_client(*origins: Origin, **settings: Any) -> AsyncIterator[Web]:
    """A client that may reach these origins by their addresses."""
    allowed = [f"127.0.0.1:{origin.port}" for origin in origins]
    async with open_private_web(WebSettings(allow_private=allowed, **settings)) as web:
        yield web


class Wires(httpcore2.AnyIOBackend):
    """Stands for the network: whatever address is connected to, an origin on loopback answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connected: list[tuple[str, int]] = []

    async def connect_tcp(self, host: str, port: int, *rest: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        self.connected.append((host, port))
        return await super().connect_tcp("127.0.0.1", self.port, *rest, **options)


class Names:
    """A name server. answers: one list of addresses per look-up, the last again and again."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.looked_up: list[str] = []

    async def __call__(self, host: str, port: int) -> list[Any]:
        self.looked_up.append(host)
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ip_address(address) for address in found]


@asynccontextmanager
async def open_wired_client(
    wires: Wires, names: Resolve, *, context: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Web]:
    """A client for which the stage's names lead to public addresses, and its wires to an origin."""
    chosen = WebSettings(**settings)
    backend = GuardedBackend(Guard(chosen.allow_private, resolve=names), inner=wires)
    async with open_private_web(chosen, backend=backend, context=context) as web:
        yield web


@dataclass(frozen=True)
class Certificate:
    server: ssl.SSLContext
    client: ssl.SSLContext


def make_certificate(folder: Any, name: str, *alpn: str) -> Certificate:
    """A self-made certificate, and a client that trusts nothing else."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, made = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run([*command, "-keyout", key, "-out", made], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made, key)
    server.set_alpn_protocols(list(alpn) or ["http/1.1"])
    return Certificate(server, ssl.create_default_context(cafile=made))


def open_sockets() -> set[str]:
    """The sockets that this process has, by their inodes."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {name for name in found if name.startswith("socket:")}
