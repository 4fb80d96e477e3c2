"""The interface of every backend and of its sandboxes.

A backend is a context manager: it makes sandboxes, and ends all of them when it is left. A sandbox keeps its state
between calls. Calls on one sandbox may overlap: code runs in order, one at a time; commands run beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Protocol

from toolhub.config import SandboxProfile
from toolhub_sandbox.model import CommandResult, Execution, Isolation, SandboxInfo

HOME = "/home/user"


class Sandbox(Protocol):
    """One isolated place that runs code and commands and keeps state between calls.

    Every method raises SandboxLost once the sandbox is gone. Nothing is ever executed twice.
    """

    @property
    def id(self) -> str: ...

    @property
    def profile(self) -> str: ...

    @property
    def is_alive(self) -> bool: ...

    async def exec_code(self, code: str, *, timeout: float | None = None) -> Execution:
        """Run Python in the sandbox's interpreter. Later calls see what it defines.

        timeout: seconds of running, without waiting for other code; the default is the profile's. After it the code is
        interrupted (state kept). If it ignores that, the interpreter is replaced (state lost). Cancelling this call
        does the same. An exception in the code becomes `Execution.error`.
        """
        ...

    async def run_command(
        self, command: str, *, timeout: float | None = None, cwd: str = HOME, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run a `bash -lc` command. When `timeout` (seconds) passes, it ends with all that it started.

        Background processes of a command that ended by itself go on running.
        """
        ...

    async def put(self, path: str, data: bytes | AsyncIterable[bytes]) -> None:
        """Write a whole file and make its folders. Relative paths start at /home/user. Raises FileError."""
        ...

    def read(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Yield a file's bytes in pieces. Raises FileError; "too large" beyond max_bytes or the profile's limit."""
        ...

    async def get(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a file's bytes; as `read`."""
        ...

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running code, if any. The state is kept."""
        ...

    async def kill(self) -> None:
        """End the sandbox with all its processes and files, and wait until it is gone. Idempotent."""
        ...

    async def wait_closed(self) -> None:
        """Return when the sandbox is gone, whatever ended it."""
        ...

    async def info(self) -> SandboxInfo: ...


class Backend(Protocol):
    """Makes sandboxes of one kind."""

    @property
    def isolation(self) -> Isolation: ...

    @property
    def memory_bytes(self) -> int | None:
        """Memory of this machine that all its sandboxes use; None: none, or unknown."""
        ...

    async def create(self, name: str, profile: SandboxProfile) -> Sandbox:
        """Start a sandbox of a profile; `name` is the profile's. Raises SandboxUnavailable or SandboxLimit."""
        ...
