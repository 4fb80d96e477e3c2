"""What can go wrong with a sandbox: one class for each decision that a caller can take.

Failures of the *program* in a sandbox (an exception, an exit code, a timeout) are not errors here. They are part of its
`Execution` or `CommandResult`.
"""

from __future__ import annotations

from typing import Literal

from toolhub.errors import ToolhubError


class SandboxError(ToolhubError):
    """Root of the errors of this package."""


class SandboxUnavailable(SandboxError):
    """The backend or the profile does not work here. The message says why, and what to do."""


class SandboxLimit(SandboxError):
    """A limit is reached; the message names it. Nothing was started. End sandboxes, or raise the limit.

    retry_after: seconds to wait before another try, if the service said so.
    """

    def __init__(self, message: str, *, limit: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after = retry_after


class SandboxNotFound(SandboxError):
    """No sandbox of that id belongs to this owner: never made, killed, or its lease ran out."""


class SandboxLost(SandboxError):
    """The sandbox is gone with its state and files; make a new one. Calls in progress may have taken effect."""


FileProblem = Literal["missing", "directory", "not a file", "denied", "too large", "no space", "other"]


class FileError(SandboxError):
    """A file could not be read or written. The sandbox still works."""

    def __init__(self, message: str, *, problem: FileProblem) -> None:
        super().__init__(message)
        self.problem: FileProblem = problem
