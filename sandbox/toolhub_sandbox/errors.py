"""What can go wrong with a sandbox, one class per decision a caller can take.

What the *program* in a sandbox does wrong (an exception, a non-zero exit, a timeout) is no error here but part of its
`Execution` or `CommandResult`.
"""

from __future__ import annotations

from typing import Literal

from toolhub.errors import ToolhubError


class SandboxError(ToolhubError):
    """Root of what the sandboxes raise."""


class SandboxUnavailable(SandboxError):
    """No sandbox can be had: the backend or the profile does not work here. The message says why and the way out."""


class SandboxLimit(SandboxError):
    """A limit is reached; the message names it. Nothing was started; close sandboxes or raise it.

    retry_after: seconds after which another try makes sense, where somebody said so.
    """

    def __init__(self, message: str, *, limit: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after = retry_after


class SandboxNotFound(SandboxError):
    """No sandbox of that id belongs to this owner: never made, killed, or its lease ran out."""


class SandboxLost(SandboxError):
    """The sandbox is gone, with all that it kept; make a new one. What was running may have done its work."""


FileProblem = Literal["missing", "directory", "not a file", "denied", "too large", "no space", "other"]


class FileError(SandboxError):
    """A file could not be moved; the sandbox is well."""

    def __init__(self, message: str, *, problem: FileProblem) -> None:
        super().__init__(message)
        self.problem: FileProblem = problem
