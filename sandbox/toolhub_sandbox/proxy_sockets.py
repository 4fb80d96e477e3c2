"""Non-blocking sockets on either of anyio's event loops.

Raw sockets, not streams: a socket is closed the moment its `with` is left, even in a cancelled task, and no event loop
reads ahead of what was asked for.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel

from toolhub_sandbox.proxy_rules import IPAddress

# Out of descriptors or memory: until others have closed something, accepting again at once would only burn the CPU.
_ACCEPT_PAUSE_S = 0.1
_LISTENER_IS_UNUSABLE = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})


async def accept(listener: socket.socket) -> socket.socket:
    """Return the next connection. Raises OSError only if the listening socket itself is of no use."""
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            await anyio.wait_readable(listener)
        except OSError as exc:
            if exc.errno in _LISTENER_IS_UNUSABLE:
                raise
            await anyio.sleep(_ACCEPT_PAUSE_S)
        else:  # No await here: a cancellation would leak the connection.
            return _prepared(connection)


async def connect(addresses: Sequence[IPAddress], port: int, *, deadline: float) -> socket.socket:
    """Connect to the first address that answers; each may take its share of the time left.

    Raises what the last one failed with: TimeoutError or another OSError.
    """
    failure = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for number, address in enumerate(addresses):
        share = (deadline - anyio.current_time()) / (len(addresses) - number)
        try:
            with anyio.fail_after(share):
                return await _connect(address, port)
        except OSError as exc:
            failure = exc
    raise failure


async def _connect(address: IPAddress, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = _prepared(socket.socket(family, socket.SOCK_STREAM))
    try:
        try:
            connection.connect((str(address), port))
        except BlockingIOError:
            await anyio.wait_writable(connection)
            if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _prepared(connection: socket.socket) -> socket.socket:
    connection.setblocking(False)
    with suppress(OSError):  # a matter of speed only
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


async def receive(source: socket.socket, size: int) -> bytes:
    """Return up to `size` bytes, nothing at the end. Raises OSError if the other side has reset the connection."""
    await anyio.lowlevel.checkpoint()  # a fast transfer would otherwise keep every other task from running
    while True:
        try:
            return source.recv(size)
        except BlockingIOError:
            await anyio.wait_readable(source)


async def send(sink: socket.socket, data: bytes) -> None:
    """Send all of it, as fast as the other side takes it. Raises OSError if that is gone."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sink.send(rest) :]
        except BlockingIOError:
            await anyio.wait_writable(sink)


def send_end(sink: socket.socket) -> None:
    """Say that nothing more will be sent; the other side may still send."""
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it is gone, and knows


def make_close_a_reset(connection: socket.socket) -> None:
    """Let closing tell the other side of a failure: a clean end would make a cut transfer look complete."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
