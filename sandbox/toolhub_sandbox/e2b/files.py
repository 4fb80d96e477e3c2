"""Files of one sandbox, moved in pieces and never beyond the profile's limit."""

from __future__ import annotations

import math
import posixpath
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio

from toolhub_sandbox.e2b.lifecycle import Lifecycle
from toolhub_sandbox.errors import FileError, FileProblem, SandboxError
from toolhub_sandbox.protocol import HOME

T = TypeVar("T")

# A slower transfer counts as stuck: a file of n bytes gets n / this seconds beyond a request's timeout.
SLOWEST_BYTES_PER_SECOND = 256 * 1024
# For removing a failed upload, and for closing a download.
TIDY_S = 5.0


class E2BFiles:
    """Puts and reads files; any number at once."""

    def __init__(self, lifecycle: Lifecycle, *, file_bytes: int) -> None:
        self._lifecycle = lifecycle
        self._files = lifecycle.remote.files
        self._file_bytes = file_bytes
        sdk = lifecycle.adapter.sdk
        self._problems: tuple[tuple[type[Exception], FileProblem], ...] = (
            (sdk.FileNotFoundException, "missing"),
            (sdk.NotEnoughSpaceException, "no space"),
            (sdk.InvalidArgumentException, "other"),
        )

    async def put(self, path: str, data: bytes | AsyncIterable[bytes]) -> None:
        """As `Sandbox.put`."""
        target = absolute(path)
        if isinstance(data, bytes):
            self._check_size(target, len(data), self._file_bytes)
            await self._write(target, data, timeout=self._seconds_for(len(data)))
        else:
            await self._put_stream(target, data)

    async def _put_stream(self, target: str, pieces: AsyncIterable[bytes]) -> None:
        # Written beside the target and renamed at the end: a failed upload leaves the file as it was.
        folder, name = posixpath.split(target)
        part = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}.part")
        try:
            upload = _Upload(
                pieces, self._lifecycle.adapter.timeout_s, lambda size: self._check_size(target, size, self._file_bytes)
            )
            with upload.scope:
                await self._write(part, upload, timeout=math.inf)
            if upload.error is not None:
                raise upload.error
            if upload.scope.cancelled_caught:
                raise SandboxError(f"{target}: the upload made no progress for {self._lifecycle.adapter.timeout_s:g} s")
            await self._send(target, "moving a file into place", lambda: self._files.rename(part, target))
        except BaseException:
            with suppress(Exception), anyio.move_on_after(TIDY_S, shield=True):
                await self._lifecycle.call(lambda: self._files.remove(part), doing="removing half a file")
            raise

    async def _write(self, target: str, data: Any, *, timeout: float) -> None:
        await self._send(target, "writing a file", lambda: self._files.write(target, data), timeout=timeout)

    async def read(self, path: str, *, max_bytes: int | None) -> AsyncGenerator[bytes, None]:
        """As `Sandbox.read`."""
        target = absolute(path)
        limit = self._file_bytes if max_bytes is None else min(max_bytes, self._file_bytes)
        entry = await self._send(target, "looking at a file", lambda: self._files.get_info(target))
        self._check_type(target, entry)
        self._check_size(target, entry.size, limit)
        stream = await self._send(
            target, "reading a file", lambda: self._files.read(target, format="stream", stream_idle_timeout=0)
        )
        size = 0
        try:
            while (piece := await self._send(target, "reading a file", lambda: anext(stream, None))) is not None:
                size += len(piece)
                self._check_size(target, size, limit)
                yield bytes(piece)
        finally:
            with suppress(Exception), anyio.move_on_after(TIDY_S, shield=True):
                await stream.aclose()

    async def _send(
        self, target: str, doing: str, send: Callable[[], Awaitable[T]], *, timeout: float | None = None
    ) -> T:
        passing = tuple(kind for kind, _ in self._problems)
        try:
            return await self._lifecycle.call(send, doing=doing, timeout=timeout, passing=passing)
        except passing as exc:
            text = self._lifecycle.adapter.redacted(exc)
            raise FileError(f"{target}: {text}", problem=self._problem(exc, text)) from exc

    def _problem(self, exc: Exception, text: str) -> FileProblem:
        # The service has one status for all of these. Only its text tells them apart.
        if "is a directory" in text or "is a dir" in text:
            return "directory"
        if "permission denied" in text:
            return "denied"
        return next(problem for kind, problem in self._problems if isinstance(exc, kind))

    def _check_type(self, target: str, entry: Any) -> None:
        kinds = self._lifecycle.adapter.sdk.FileType
        if entry.type == kinds.DIR:
            raise FileError(f"{target} is a directory", problem="directory")
        if entry.type not in (kinds.FILE, kinds.SYMLINK):
            raise FileError(f"{target} is not a file", problem="not a file")

    def _check_size(self, target: str, size: int, limit: int) -> None:
        if size > limit:
            raise FileError(f"{target} is larger than the limit of {limit} bytes", problem="too large")

    def _seconds_for(self, size: int) -> float:
        return self._lifecycle.adapter.timeout_s + size / SLOWEST_BYTES_PER_SECOND


class _Upload:
    """An upload in pieces. `scope` is cancelled when the service takes none for a while.

    The time that the producer needs for a piece does not count.
    """

    def __init__(self, pieces: AsyncIterable[bytes], idle_s: float, check: Callable[[int], None]) -> None:
        self.scope = anyio.CancelScope()
        self.error: Exception | None = None
        self._pieces = pieces
        self._idle_s = idle_s
        self._check = check
        self._size = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                self._size += len(piece)
                self._check(self._size)
                self.scope.deadline = anyio.current_time() + self._idle_s
                yield bytes(piece)
                self.scope.deadline = math.inf
        except Exception as exc:
            # The SDK may wrap the error; the caller gets the original.
            self.error = exc
            self.scope.cancel()
            return
        self.scope.deadline = anyio.current_time() + self._idle_s


def absolute(path: str) -> str:
    """A relative path starts at /home/user."""
    return posixpath.normpath(posixpath.join(HOME, path))
