"""The values that sandboxes return, the same from every backend."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["kept", "lost"]


@dataclass(frozen=True, slots=True)
class Display:
    """A displayed value in several MIME types, as in Jupyter.

    data: MIME type -> text; images in base64, as in a notebook file.
    """

    data: Mapping[str, str]
    is_result: bool = False
    """Whether it is the value of the last expression, not one that the code displayed."""

    @property
    def text(self) -> str | None:
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        return self.data.get("text/html")

    @property
    def png(self) -> bytes | None:
        """The image; None without one, or if the data is not valid base64."""
        try:
            return base64.b64decode(self.data.get("image/png", "")) or None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that ended an execution.

    Beside Python's own, `name` may be ExecutionTimeout, Interrupted, WorkerDied or MemoryLimit.
    """

    name: str
    value: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Execution:
    """What one piece of code did. Text that is not UTF-8 has replacement characters."""

    stdout: str = ""
    stderr: str = ""
    displays: tuple[Display, ...] = ()
    error: Failure | None = None
    state: State = "kept"
    """`lost`: the interpreter was replaced. Variables, imports and threads are gone; files are not.

    Each loss is reported once: by the execution that caused it, or by the next one if no caller waited for an answer.
    """
    timed_out: bool = False
    dropped_bytes: int = 0
    """Output beyond the profile's `output_bytes`."""
    number: int = 0
    """Counts the executions of this sandbox, from 1."""

    @property
    def result(self) -> str | None:
        """The text of the last expression's value."""
        return next((shown.text for shown in self.displays if shown.is_result), None)

    @property
    def images(self) -> tuple[bytes, ...]:
        """Every PNG that was shown, in order."""
        return tuple(png for shown in self.displays if (png := shown.png) is not None)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a shell command did.

    exit_code: the shell's; 128 + n for signal n, so 137 after a timeout; 126 if the command could not be started, for
    example because `cwd` does not exist.
    """

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool = False
    dropped_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """The state of a sandbox. None where the backend does not know."""

    id: str
    profile: str
    backend: str
    isolation: str
    age_s: float
    idle_s: float
    executions: int
    lease_s: float | None = None
    """Seconds left; None: the sandbox lives as long as its owner."""
    cpu_s: float | None = None
    rss_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Isolation:
    """What a backend really enforces on this machine. Each text in `weaker` says what is missing and why."""

    backend: str
    summary: str
    limits: str
    """What bounds memory and processes: `cgroup v2`, `cgroup v1`, `rlimits and watch`, ..."""
    weaker: tuple[str, ...] = field(default_factory=tuple)
    is_secure: bool = True
