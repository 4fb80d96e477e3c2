"""What every backend offers.

A backend is opened as a context manager, makes sandboxes, and ends them all when it is left. Sandboxes keep their
state between calls; calls on one sandbox may overlap (code runs one after the other, commands beside it).
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
        """Run Python in the sandbox's interpreter; what it defines is there for the next call.

        timeout: seconds of running (not of waiting for other code); default is the profile's. When it passes, the code
        is interrupted (state kept); if it ignores that, the interpreter is replaced (state lost). Cancelling does the
        same. The code's own failure is `Execution.error`.
        """
        ...

    async def run_command(
        self, command: str, *, timeout: float | None = None, cwd: str = HOME, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run a `bash -lc` command. When `timeout` (seconds) passes, it ends with all that it started.

        What a command that ended by itself left in the background goes on running.
        """
        ...

    async def put(self, path: str, data: bytes | AsyncIterable[bytes]) -> None:
        """Write a file as a whole, making its folders; a relative path starts at /home/user. Raises FileError."""
        ...

    def read(self, path: str, *, max_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Yield a file's bytes in pieces. Raises FileError; "too large" beyond max_bytes or the profile's limit."""
        ...

    async def get(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a file's bytes; as `read`."""
        ...

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running code, if any; its state is kept."""
        ...

    async def kill(self) -> None:
        """End it with everything in it, and wait until nothing is left. Idempotent."""
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
        """What all its sandboxes use on this machine; None: nothing, or it cannot tell."""
        ...

    async def create(self, name: str, profile: SandboxProfile) -> Sandbox:
        """Start a sandbox of a profile; `name` is the profile's. Raises SandboxUnavailable or SandboxLimit."""
        ...
