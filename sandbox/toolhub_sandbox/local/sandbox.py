"""A sandbox on this machine, as the hub sees it."""

from __future__ import annotations

import itertools
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import aclosing

import anyio

from toolhub.config import SandboxProfile
from toolhub_sandbox.errors import FileError, FileProblem, SandboxLost
from toolhub_sandbox.inside.frames import CHUNK_BYTES, BadFrame, Head, Message, is_display
from toolhub_sandbox.inside.worker import MAX_CODE, MAX_DISPLAYS
from toolhub_sandbox.local.agent_connection import AgentConnection
from toolhub_sandbox.model import CommandResult, Display, Execution, Failure, SandboxInfo
from toolhub_sandbox.protocol import HOME

# After a timeout the agent needs a second to interrupt and kill; more on a busy machine.
_SLACK_S = 15.0
# Sums of timeouts stay finite: infinity minus infinity is not a number.
_FOR_EVER_S = 1e9
# For requests that the agent answers by itself: file operations, reading /proc.
_AGENT_S = 30.0
_KILL_S = 5.0
# Characters kept of a reason that an agent gives.
_MAX_REASON = 1000
_MAX_COUNT = 1 << 63
_FILE_TEXTS: dict[FileProblem, str] = {
    "missing": "does not exist",
    "directory": "is a directory",
    "not a file": "is not a regular file",
    "denied": "may not be accessed",
    "no space": "does not fit: the sandbox's disk is full",
}


def max_response_bytes(profile: SandboxProfile) -> int:
    """Return the size of the longest message that an agent of ours sends; a longer one breaks the protocol."""
    return max(2 * profile.output_bytes + MAX_DISPLAYS, CHUNK_BYTES) + (1 << 20)


class LocalSandbox:
    """See `protocol.Sandbox`. Its backend runs `listen()`, then `end()`, and owns `pidfd`."""

    def __init__(
        self,
        sandbox_id: str,
        profile_name: str,
        profile: SandboxProfile,
        *,
        connection: AgentConnection,
        pidfd: int,
        backend: str,
        isolation: str,
        was_out_of_memory: Callable[[], bool],
    ) -> None:
        self.id = sandbox_id
        self.profile = profile_name
        self.executions = 0
        self._settings = profile
        self._connection = connection
        self._pidfd = pidfd
        self._backend = backend
        self._isolation = isolation
        self._was_out_of_memory = was_out_of_memory
        self._started = self._used = anyio.current_time()
        self._queued_s = 0.0
        self._file_numbers = itertools.count(1)
        self._gone = anyio.Event()
        connection.on_event = self._on_event

    def __repr__(self) -> str:
        state = "alive" if self.is_alive else "gone"
        return f"<LocalSandbox {self.id} {self.profile} {state} executions={self.executions}>"

    @property
    def is_alive(self) -> bool:
        return not self._connection.has_ended

    # --- start and end ------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Read the agent's messages until the sandbox has ended or is being closed."""
        await self._connection.listen()

    async def end(self) -> None:
        """Close the connection and wait until the sandbox's first process has ended. Bounded in time."""
        self._connection.close("it was closed")
        with anyio.move_on_after(_KILL_S):
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                await anyio.wait_readable(self._pidfd)
            except ProcessLookupError:
                pass

    def set_gone(self) -> None:
        """Everything that the hub held for the sandbox has been cleaned up too."""
        self._gone.set()

    def _on_event(self, head: Head) -> None:
        if head.get("event") in ("lost", "failed"):
            self._connection.loss_reason = _text(head, "why")[:_MAX_REASON]

    async def kill(self) -> None:
        self._connection.close("it was killed")
        await self._gone.wait()

    async def wait_closed(self) -> None:
        await self._gone.wait()

    # --- running ----------------------------------------------------------------------------------------------------

    async def exec_code(self, code: str, *, timeout: float | None = None) -> Execution:
        seconds = self._settings.exec_timeout_s if timeout is None else timeout
        data = _encoded(code)
        if len(data) > MAX_CODE:
            raise ValueError(f"the code has {len(data)} bytes; {MAX_CODE} is the most that can be run at once")
        self.executions += 1
        self._used = anyio.current_time()
        request = {"op": "exec", "timeout": seconds}
        patience = min(seconds, _FOR_EVER_S) + _SLACK_S
        self._queued_s += patience  # code of the same sandbox runs one after the other
        try:
            head, parts = await self._connection.request(request, data, timeout=self._queued_s, on_cancel=self._cancel)
        finally:
            self._queued_s -= patience
            self._used = anyio.current_time()
        try:
            return self._execution(head, parts, seconds)
        except BadFrame as exc:
            raise self._broke_protocol(exc) from exc

    def _execution(self, head: Head, parts: list[bytes], seconds: float) -> Execution:
        """Read an answer. Raises BadFrame. Every value is checked: the model's code may control the agent."""
        texts = [part.decode(errors="replace") for part in parts or (b"", b"")]
        if len(texts) < 2:
            raise BadFrame("an answer to exec_code without stdout and stderr")
        state = _text(head, "state", "kept")
        if state not in ("kept", "lost"):
            raise BadFrame("the state is neither kept nor lost")
        timed_out = _flag(head, "timed_out", False)
        return Execution(
            stdout=texts[0],
            stderr=texts[1],
            displays=_displays(head.get("displays", []), texts[2:]),
            error=self._failure(_error(head), state, seconds if timed_out else None),
            state="kept" if state == "kept" else "lost",
            timed_out=timed_out,
            dropped_bytes=_count(head, "dropped", 0),
            number=_count(head, "number"),
        )

    def _failure(self, error: tuple[str, str, str], state: str, seconds: float | None) -> Failure | None:
        name, value, traceback = error
        if seconds is not None:
            what = "interrupted, state kept" if state == "kept" else "killed, state lost: it ignored the interrupt"
            return Failure("ExecutionTimeout", f"the code did not end within {seconds:g} s ({what})", traceback)
        if name == "WorkerDied" and self._was_out_of_memory():
            limit = self._settings.memory_bytes
            return Failure("MemoryLimit", f"the sandbox may use {limit} bytes of memory; its state is lost")
        return Failure(name, value, traceback) if name else None

    async def run_command(
        self, command: str, *, timeout: float | None = None, cwd: str = HOME, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        seconds = self._settings.command_timeout_s if timeout is None else timeout
        self._used = anyio.current_time()
        request = {"op": "command", "timeout": seconds, "cwd": cwd, "env": dict(env or {})}
        if "\0" in command:
            raise ValueError("a command cannot contain a null character")
        try:
            head, parts = await self._connection.request(
                request, _encoded(command), timeout=seconds + _SLACK_S, on_cancel=self._cancel
            )
        finally:
            self._used = anyio.current_time()
        try:
            if "failed" in head:
                return CommandResult("", f"{_text(head, 'failed')[:_MAX_REASON]}\n", 126)
            if len(parts) != 2:
                raise BadFrame("an answer to run_command without stdout and stderr")
            stdout, stderr = (part.decode(errors="replace") for part in parts)
            code, dropped = _count(head, "code"), _count(head, "dropped")
            return CommandResult(stdout, stderr, code, _flag(head, "timed_out"), dropped)
        except BadFrame as exc:
            raise self._broke_protocol(exc) from exc

    def _cancel(self, number: int) -> None:
        self._connection.notify({"op": "cancel", "of": number})

    async def interrupt(self) -> None:
        self._connection.notify({"op": "interrupt"})
        if not self.is_alive:
            raise self._connection.lost_error()

    def _broke_protocol(self, exc: BadFrame) -> SandboxLost:
        self._connection.close(f"it broke the protocol: {exc}")
        return self._connection.lost_error()

    # --- files ------------------------------------------------------------------------------------------------------

    async def put(self, path: str, data: bytes | AsyncIterable[bytes]) -> None:
        self._used = anyio.current_time()
        number = next(self._file_numbers)
        done = False
        try:
            await self._file_request({"op": "open", "mode": "w", "file": number}, path, _encoded(path))
            written = 0
            async with aclosing(_pieces(data)) as pieces:
                async for piece in pieces:
                    written += len(piece)
                    self._check_size(written, self._settings.file_bytes, path)
                    await self._file_request({"op": "write", "file": number}, path, piece)
            await self._file_request({"op": "close", "file": number, "keep": True}, path)
            done = True
        finally:
            if not done:
                self._connection.notify({"op": "close", "file": number, "keep": False, "id": 0})

    async def read(self, path: str, *, max_bytes: int | None = None) -> AsyncGenerator[bytes, None]:
        self._used = anyio.current_time()
        limit = min(self._settings.file_bytes, self._settings.file_bytes if max_bytes is None else max_bytes)
        number = next(self._file_numbers)
        seen = 0
        try:
            await self._file_request({"op": "open", "mode": "r", "file": number}, path, _encoded(path))
            while True:
                _, parts = await self._file_request({"op": "read", "file": number}, path)
                if not parts or not parts[0]:
                    return
                seen += len(parts[0])
                self._check_size(seen, limit, path)
                yield parts[0]
        finally:
            self._connection.notify({"op": "close", "file": number, "keep": False, "id": 0})

    async def get(self, path: str, *, max_bytes: int | None = None) -> bytes:
        async with aclosing(self.read(path, max_bytes=max_bytes)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def _file_request(self, request: Head, path: str, *parts: bytes) -> Message:
        head, answer = await self._connection.request(request, *parts, timeout=_AGENT_S)
        if "problem" not in head:
            return head, answer
        try:
            problem, reason = _text(head, "problem"), _text(head, "reason")[:_MAX_REASON]
        except BadFrame as exc:
            raise self._broke_protocol(exc) from exc
        known: FileProblem = next((kind for kind in _FILE_TEXTS if kind == problem), "other")
        raise FileError(f"{path!r} in the sandbox {_FILE_TEXTS.get(known, f'cannot be used: {reason}')}", problem=known)

    def _check_size(self, size: int, limit: int, path: str) -> None:
        if size > limit:
            raise FileError(f"{path!r} has more than {limit} bytes, the most that can be moved", problem="too large")

    # --- looking ----------------------------------------------------------------------------------------------------

    async def info(self) -> SandboxInfo:
        head, _ = await self._connection.request({"op": "usage"}, timeout=_AGENT_S)
        now = anyio.current_time()
        return SandboxInfo(
            id=self.id,
            profile=self.profile,
            backend=self._backend,
            isolation=self._isolation,
            age_s=now - self._started,
            idle_s=now - self._used,
            executions=self.executions,
            cpu_s=_number(head.get("cpu_s")),
            rss_bytes=int(_number(head.get("rss_bytes"))),
            processes=int(_number(head.get("processes"))),
        )


def _encoded(text: str) -> bytes:
    """Encode as UTF-8. Lone surrogates, which models do write, become `?`."""
    return text.encode(errors="replace")


def _number(value: object) -> float:
    """Read a number that an agent reports about itself: 0 if it is not one. A wrong number does no harm here."""
    return value if isinstance(value, int | float) and type(value) is not bool and 0 <= value < _MAX_COUNT else 0


def _text(head: Head, key: str, default: str | None = None) -> str:
    value = head.get(key, default)
    if type(value) is not str:
        raise BadFrame(f"{key!r} is not a string")
    return _encoded(value).decode()


def _count(head: Head, key: str, default: int | None = None) -> int:
    value = head.get(key, default)
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise BadFrame(f"{key!r} is not a count")
    return value


def _flag(head: Head, key: str, default: bool | None = None) -> bool:
    value = head.get(key, default)
    if type(value) is not bool:
        raise BadFrame(f"{key!r} is neither true nor false")
    return value


def _error(head: Head) -> tuple[str, str, str]:
    """Return name, value and traceback of the exception that ended the code; empty strings without one."""
    told = head.get("error")
    if told is None:
        return "", "", ""
    if not isinstance(told, list) or [type(text) for text in told] != [str] * 3:
        raise BadFrame("its error is not a name, a value and a traceback")
    name, value, traceback = (_encoded(text).decode() for text in told)
    return name, value, traceback


def _displays(shape: object, texts: list[str]) -> tuple[Display, ...]:
    """Join the description of each display (whether it is the result, its MIME types) with the data."""
    if not isinstance(shape, list) or not all(map(is_display, shape)):
        raise BadFrame("its displays have the wrong form")
    if sum(len(kinds) for _, kinds in shape) != len(texts):
        raise BadFrame("its displays do not match their data")
    left = iter(texts)
    return tuple([Display({kind: next(left) for kind in kinds}, is_result) for is_result, kinds in shape])


async def _pieces(data: bytes | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Cut into pieces that fit a message."""
    if isinstance(data, bytes):
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]
        return
    async for chunk in data:
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield chunk[start : start + CHUNK_BYTES]
