"""One sandbox at E2B, as `toolhub_sandbox.protocol.Sandbox` says."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping

import anyio

from toolhub.config import SandboxProfile
from toolhub_sandbox.e2b.commands import E2BCommands
from toolhub_sandbox.e2b.files import E2BFiles
from toolhub_sandbox.e2b.interpreter import E2BInterpreter
from toolhub_sandbox.e2b.lifecycle import Lifecycle
from toolhub_sandbox.errors import SandboxError
from toolhub_sandbox.model import CommandResult, Execution, SandboxInfo
from toolhub_sandbox.protocol import HOME

# `info()` waits this long for metrics, which are optional.
METRICS_S = 2.0


class E2BSandbox:
    """A virtual machine at E2B; `id` is the service's own."""

    def __init__(self, lifecycle: Lifecycle, name: str, profile: SandboxProfile) -> None:
        self.lifecycle = lifecycle
        self._name = name
        self._limits = profile
        self._interpreter = E2BInterpreter(lifecycle, preload=profile.preload, output_bytes=profile.output_bytes)
        self._commands = E2BCommands(lifecycle, output_bytes=profile.output_bytes)
        self._files = E2BFiles(lifecycle, file_bytes=profile.file_bytes)
        self._created_at = self._used_at = anyio.current_time()

    def __repr__(self) -> str:
        return f"<E2BSandbox {self.id} {self._name!r} {self.lifecycle.end_reason or 'alive'}>"

    @property
    def id(self) -> str:
        return str(self.lifecycle.remote.sandbox_id)

    @property
    def profile(self) -> str:
        return self._name

    @property
    def is_alive(self) -> bool:
        return self.lifecycle.is_alive

    async def start(self) -> None:
        """Make its interpreter ready. Raises SandboxUnavailable, SandboxError."""
        with self.lifecycle.while_alive():
            await self._interpreter.start()

    async def exec_code(self, code: str, *, timeout: float | None = None) -> Execution:
        """As the protocol says.

        The SDK keeps all output until the code has ended; `output_bytes` bounds only what is returned.
        """
        self._used()
        with self.lifecycle.while_alive():
            return await self._interpreter.run(code, timeout=_or(timeout, self._limits.exec_timeout_s))
        raise AssertionError("while_alive() ends or raises")

    async def run_command(
        self, command: str, *, timeout: float | None = None, cwd: str = HOME, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """As the protocol says. A process that emptied its environment *and* left its parents is not found."""
        self._used()
        with self.lifecycle.while_alive():
            seconds = _or(timeout, self._limits.command_timeout_s)
            return await self._commands.run(command, timeout=seconds, cwd=cwd, env=env or {})
        raise AssertionError("while_alive() ends or raises")

    async def put(self, path: str, data: bytes | AsyncIterable[bytes]) -> None:
        self._used()
        with self.lifecycle.while_alive():
            await self._files.put(path, data)

    async def read(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        self._used()
        # No `while_alive()` around a `yield`: each request finds out by itself that the sandbox is gone.
        pieces = self._files.read(path, max_bytes=max_bytes)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    async def get(self, path: str, *, max_bytes: int | None = None) -> bytes:
        with self.lifecycle.while_alive():
            return b"".join([piece async for piece in self.read(path, max_bytes=max_bytes)])
        raise AssertionError("while_alive() ends or raises")

    async def interrupt(self) -> None:
        """Interrupt the running code, if any, and return when it has ended.

        The service has no request for it, but interrupts code whose request is dropped. If that does not help within
        seconds, the interpreter is replaced. The interrupted `Execution` says whether its state is lost.
        """
        with self.lifecycle.while_alive():
            await self._interpreter.interrupt()

    async def kill(self) -> None:
        await self.lifecycle.kill()

    async def wait_closed(self) -> None:
        await self.lifecycle.wait_closed()

    async def info(self) -> SandboxInfo:
        """How it is doing; `rss_bytes` is the memory used by the whole machine."""
        rss_bytes = await self._memory_used()
        now = anyio.current_time()
        return SandboxInfo(
            id=self.id,
            profile=self._name,
            backend="e2b",
            isolation="virtual machine at E2B",
            age_s=now - self._created_at,
            idle_s=now - self._used_at,
            executions=self._interpreter.executions,
            lease_s=max(0.0, self.lifecycle.lease.ends_at - now),
            rss_bytes=rss_bytes,
        )

    async def _memory_used(self) -> int | None:
        try:
            metrics = await self.lifecycle.call(
                self.lifecycle.remote.get_metrics, doing="reading metrics", timeout=METRICS_S
            )
        except SandboxError:
            self.lifecycle.check()
            return None
        return int(metrics[-1].mem_used) if metrics else None

    def _used(self) -> None:
        self._used_at = anyio.current_time()


def _or(timeout: float | None, default: float) -> float:
    return default if timeout is None else timeout
