"""The hub's connection to the agent of one sandbox: requests out, replies in, matched by number.

The agent is treated as hostile: code in the sandbox may have taken it over.
"""

from __future__ import annotations

import array
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anyio

from toolhub_sandbox.errors import SandboxLost
from toolhub_sandbox.inside.frames import RECEIVE_BYTES, BadFrame, FrameBuffer, Head, Message, encode

_MAX_DESCRIPTORS = 2
# A healthy agent reads within milliseconds.
_FINISH_S = 5.0


class AgentConnection:
    """One socket. One task must run `listen()`; any number of tasks may use the other methods."""

    def __init__(self, sock: socket.socket, *, max_body: int) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._buffer = FrameBuffer(max_body)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[anyio.Event, list[Message]]] = {}
        self._sending = anyio.Lock(fast_acquire=True)
        self._rest = memoryview(b"")
        self._notices: deque[bytes] = deque()
        self._ended = anyio.Event()
        self._users = 0
        self.on_event: Callable[[Head], None] = lambda head: None
        self.loss_reason = ""

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def handshake(self) -> tuple[Head, list[int]]:
        """Wait for the agent's first message, and the descriptors that come with it."""
        with self._in_use():
            await anyio.wait_readable(self._socket)
        if self._ended.is_set():
            raise self.lost_error()
        data, ancillary, _, _ = self._socket.recvmsg(RECEIVE_BYTES, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS))
        descriptors = array.array("i")
        for _, kind, packed in ancillary:
            if kind == socket.SCM_RIGHTS:
                descriptors.frombytes(packed[: len(packed) - len(packed) % 4])
        try:
            (message,) = self._buffer.feed(data)
        except (BadFrame, ValueError):
            for descriptor in descriptors:
                os.close(descriptor)
            raise SandboxLost("it ended during its start") from None
        return message[0], list(descriptors)

    def start(self, descriptors: Sequence[int]) -> None:
        """Answer the handshake: pass the cgroup descriptors and let the agent begin. Raises SandboxLost."""
        try:
            socket.send_fds(self._socket, [b"g"], descriptors)
        except OSError as exc:
            raise self.lost_error() from exc

    async def send(self, data: bytes) -> None:
        """Send raw bytes. Raises SandboxLost."""
        async with self._sending:
            self._rest = memoryview(data)
            try:
                await self._send_rest()
            except BaseException:
                if len(self._rest) < len(data) and not self._ended.is_set():
                    await self._finish()
                raise
            finally:
                self._send_notices()

    async def _finish(self) -> None:
        """Send the rest of a message: the agent could not read anything after half a message."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(_FINISH_S):
            await self._send_rest()
        if self._rest:
            self.close("a message to it was sent only in part")

    async def _send_rest(self) -> None:
        try:
            with self._in_use():
                while self._rest:
                    try:
                        self._rest = self._rest[self._socket.send(self._rest) :]
                    except BlockingIOError:
                        await anyio.wait_writable(self._socket)
        except OSError as exc:
            raise self.lost_error() from exc

    async def request(
        self, head: Head, *parts: bytes, timeout: float, on_cancel: Callable[[int], None] | None = None
    ) -> Message:
        """Send a request and wait for its reply, at most `timeout` seconds. After that the agent counts as lost.

        on_cancel: called with the request's number if this call is cancelled. The request may have been sent.
        """
        if self._ended.is_set():
            raise self.lost_error()
        number = next(self._numbers)
        event, replies = self._waiting[number] = anyio.Event(), []
        try:
            await self.send(encode(head | {"id": number}, *parts))
            with anyio.move_on_after(timeout):
                await event.wait()
        except BaseException:
            if on_cancel is not None:
                on_cancel(number)
            raise
        finally:
            del self._waiting[number]
        if not replies:
            if not self._ended.is_set():
                self.close(f"it did not answer within {timeout:g} s")
            raise self.lost_error()
        return replies[0]

    def notify(self, head: Head) -> None:
        """Send a small message as soon as the socket has room, without waiting. It gets no reply."""
        self._notices.append(encode(head))
        if not self._sending.locked():
            self._send_notices()

    def _send_notices(self) -> None:
        """Send queued notices while the socket has room. The kernel takes a small message as a whole or not at all."""
        try:
            while self._notices:
                self._socket.send(self._notices[0])
                self._notices.popleft()
        except OSError:
            pass  # no room until the agent reads; it then answers, and listen() tries again. Or it is gone.

    async def listen(self) -> None:
        """Hand replies to the waiting requests, until the connection ends."""
        why = "it ended"
        try:
            with self._in_use():
                while not self._ended.is_set():
                    await anyio.wait_readable(self._socket)  # before recv: normally one reply comes at a time
                    try:
                        data = self._socket.recv(RECEIVE_BYTES)
                    except BlockingIOError:
                        continue
                    if not data:
                        break
                    for message in self._buffer.feed(data):
                        self._take(message)
                    if not self._sending.locked():
                        self._send_notices()
        except BadFrame as exc:
            why = f"it broke the protocol: {exc}"
        except OSError:
            pass
        finally:
            self.close(why)

    def _take(self, message: Message) -> None:
        head = message[0]
        number: Any = head.get("id")
        if number is None:
            self.on_event(head)
        elif type(number) is int and number in self._waiting:
            event, replies = self._waiting[number]
            if not event.is_set():
                replies.append(message)
                event.set()

    def close(self, reason: str) -> None:
        """Close the connection: the agent sees that and ends the sandbox. Idempotent."""
        if self._ended.is_set():
            return
        self.loss_reason = self.loss_reason or reason
        self._ended.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the agent sees the end, and tasks that wait here wake
        self._close_if_unused()
        for event, _ in self._waiting.values():
            event.set()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the socket open while a task waits for it.

        The next socket that is opened gets the number of a closed one. A task that waited for the old socket would
        then remove that number from the event loop when it wakes, and the new socket would never be reported ready.
        """
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._ended.is_set() and not self._users:
            self._socket.close()

    def lost_error(self) -> SandboxLost:
        return SandboxLost(f"the sandbox is gone with all that it kept: {self.loss_reason or 'it ended'}")
