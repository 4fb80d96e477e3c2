"""Sockets that send the head and the body of a request in one piece: it wakes the engine once, not twice."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2

_Options = Iterable[tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]]


class JoiningBackend(httpcore2.AnyIOBackend):
    """Opens them; everything else is as usual."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _Options | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return Joined(await super().connect_tcp(host, port, timeout, local_address, socket_options))


class Joined(httpcore2.AsyncNetworkStream):
    """What is written goes out when an answer is asked for."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._unsent: list[bytes] = []

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._unsent:
            content, self._unsent = b"".join(self._unsent), []
            try:
                await self._stream.write(content)
            except httpcore2.WriteError:
                pass  # the engine stopped listening, perhaps after an answer that says why
        return await self._stream.read(max_bytes, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return Joined(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
